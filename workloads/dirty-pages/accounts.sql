-- 200,000 rows of about 250 bytes. Joined from digits: only MariaDB has sequences.
CREATE TABLE accounts (
  id INT NOT NULL PRIMARY KEY,
  balance INT NOT NULL,
  note CHAR(200) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=latin1;
CREATE TABLE digit (d INT NOT NULL PRIMARY KEY) ENGINE=InnoDB;
INSERT INTO digit VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
INSERT INTO accounts
  SELECT n, n % 1000, REPEAT('A', 200)
  FROM (
    SELECT 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d AS n
    FROM digit a, digit b, digit c, digit e, digit f, digit g WHERE g.d < 2
  ) AS numbers
  ORDER BY n;
