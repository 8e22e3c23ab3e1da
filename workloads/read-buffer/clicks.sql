-- About 8 MB of rows of fixed length, as a log of clicks would be. Joined from digits: only MariaDB has sequences.
CREATE TABLE clicks (
  id INT NOT NULL AUTO_INCREMENT,
  page INT NOT NULL,
  visitor CHAR(120) NOT NULL,
  PRIMARY KEY (id)
) ENGINE=MyISAM ROW_FORMAT=FIXED DEFAULT CHARSET=latin1;
CREATE TABLE digit (d INT NOT NULL PRIMARY KEY) ENGINE=MyISAM;
INSERT INTO digit VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15);
INSERT INTO clicks (id, page, visitor)
  SELECT n, n % 500, RPAD(HEX(2654435761 * n), 32, HEX(2246822519 * n))
  FROM (SELECT 1 + a.d + 16 * b.d + 256 * c.d + 4096 * e.d AS n FROM digit a, digit b, digit c, digit e) AS numbers
  ORDER BY n;
