-- One table as sysbench's OLTP test has it: 200,000 rows of about 230 bytes, in memory with the workload's settings.
-- The join of digits needs no sequence engine, so that servers of the past can make it too.
CREATE TABLE sbtest (
  id INT NOT NULL AUTO_INCREMENT,
  k INT NOT NULL DEFAULT 0,
  c CHAR(120) NOT NULL DEFAULT '',
  pad CHAR(60) NOT NULL DEFAULT '',
  PRIMARY KEY (id),
  KEY k_1 (k)
) ENGINE=InnoDB;
CREATE TABLE digit (d INT NOT NULL PRIMARY KEY);
INSERT INTO digit VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
INSERT INTO sbtest (id, k, c, pad)
  SELECT
    1 + a.d + 10 * b.d + 100 * e.d + 1000 * f.d + 10000 * g.d + 100000 * h.d,
    1 + MOD(2654435761 * (1 + a.d + 10 * b.d + 100 * e.d + 1000 * f.d + 10000 * g.d + 100000 * h.d), 200000),
    -- Hexadecimal words as MD5 would give, which MySQL 9.7 has no more.
    LEFT(CONCAT(
      RPAD(HEX(2654435761 * (1 + a.d + 10 * b.d + 100 * e.d + 1000 * f.d)), 32, '7c4a8d09'),
      RPAD(HEX(2246822519 * (1 + g.d + 10 * h.d)), 32, 'b5a2c96e'),
      RPAD(HEX(3266489917 * (1 + a.d)), 32, '5d41402a'),
      RPAD(HEX(668265263 * (1 + b.d)), 32, '0cc175b9')), 119),
    RPAD(HEX(2654435761 * (1 + a.d + 10 * b.d)), 32, 'e4da3b7f')
  FROM digit a, digit b, digit e, digit f, digit g, digit h
  WHERE h.d < 2
  ORDER BY 1;
ANALYZE TABLE sbtest;
