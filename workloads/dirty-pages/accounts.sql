-- 200,000 rows of about 250 bytes.
CREATE TABLE accounts (
  id INT NOT NULL PRIMARY KEY,
  balance INT NOT NULL,
  note CHAR(200) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=latin1;
INSERT INTO accounts SELECT seq, seq % 1000, REPEAT('A', 200) FROM seq_1_to_200000;
