-- About 8 MB of rows of fixed length, as a log of clicks would be.
CREATE TABLE clicks (
  id INT NOT NULL AUTO_INCREMENT,
  page INT NOT NULL,
  visitor CHAR(120) NOT NULL,
  PRIMARY KEY (id)
) ENGINE=MyISAM ROW_FORMAT=FIXED DEFAULT CHARSET=latin1;
INSERT INTO clicks (page, visitor) SELECT seq % 500, MD5(seq) FROM seq_1_to_65536;
