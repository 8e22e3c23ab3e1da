-- TPC-C's nine tables and their first rows (specification 5.11, clauses 1.3 and 4.3.3), made by the server from digits:
-- the same rows every time. Where the specification wants random numbers they are CRC32 of the row's key, and random
-- letters are hexadecimal digits of its multiples: MySQL 9.7 has no MD5 any more, and not every server has SHA2.
CREATE TABLE digit (d INT NOT NULL PRIMARY KEY) ENGINE=InnoDB;
INSERT INTO digit VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
CREATE TABLE number (n INT NOT NULL PRIMARY KEY) ENGINE=InnoDB;
INSERT INTO number SELECT 1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d
  FROM digit a, digit b, digit c, digit e, digit f ORDER BY 1;
CREATE TABLE syllable (d INT NOT NULL PRIMARY KEY, s VARCHAR(5) NOT NULL) ENGINE=InnoDB;
INSERT INTO syllable VALUES (0, 'BAR'), (1, 'OUGHT'), (2, 'ABLE'), (3, 'PRI'), (4, 'PRES'), (5, 'ESE'), (6, 'ANTI'),
  (7, 'CALLY'), (8, 'ATION'), (9, 'EING');

CREATE TABLE warehouse (
  w_id SMALLINT NOT NULL PRIMARY KEY, w_name VARCHAR(10), w_street_1 VARCHAR(20), w_street_2 VARCHAR(20),
  w_city VARCHAR(20), w_state CHAR(2), w_zip CHAR(9), w_tax DECIMAL(4,4), w_ytd DECIMAL(12,2)
) ENGINE=InnoDB;
CREATE TABLE district (
  d_id TINYINT NOT NULL, d_w_id SMALLINT NOT NULL, d_name VARCHAR(10), d_street_1 VARCHAR(20), d_street_2 VARCHAR(20),
  d_city VARCHAR(20), d_state CHAR(2), d_zip CHAR(9), d_tax DECIMAL(4,4), d_ytd DECIMAL(12,2), d_next_o_id INT,
  PRIMARY KEY (d_w_id, d_id)
) ENGINE=InnoDB;
CREATE TABLE customer (
  c_id INT NOT NULL, c_d_id TINYINT NOT NULL, c_w_id SMALLINT NOT NULL, c_first VARCHAR(16), c_middle CHAR(2),
  c_last VARCHAR(16), c_street_1 VARCHAR(20), c_street_2 VARCHAR(20), c_city VARCHAR(20), c_state CHAR(2),
  c_zip CHAR(9), c_phone CHAR(16), c_since DATETIME, c_credit CHAR(2), c_credit_lim DECIMAL(12,2),
  c_discount DECIMAL(4,4), c_balance DECIMAL(12,2), c_ytd_payment DECIMAL(12,2), c_payment_cnt INT,
  c_delivery_cnt INT, c_data VARCHAR(500),
  PRIMARY KEY (c_w_id, c_d_id, c_id), KEY by_name (c_w_id, c_d_id, c_last, c_first)
) ENGINE=InnoDB;
CREATE TABLE history (
  h_id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, h_c_id INT, h_c_d_id TINYINT, h_c_w_id SMALLINT, h_d_id TINYINT,
  h_w_id SMALLINT, h_date DATETIME, h_amount DECIMAL(6,2), h_data VARCHAR(24)
) ENGINE=InnoDB;
CREATE TABLE orders (
  o_id INT NOT NULL, o_d_id TINYINT NOT NULL, o_w_id SMALLINT NOT NULL, o_c_id INT, o_entry_d DATETIME,
  o_carrier_id TINYINT, o_ol_cnt TINYINT, o_all_local TINYINT,
  PRIMARY KEY (o_w_id, o_d_id, o_id), KEY by_customer (o_w_id, o_d_id, o_c_id, o_id)
) ENGINE=InnoDB;
CREATE TABLE new_order (
  no_o_id INT NOT NULL, no_d_id TINYINT NOT NULL, no_w_id SMALLINT NOT NULL, PRIMARY KEY (no_w_id, no_d_id, no_o_id)
) ENGINE=InnoDB;
CREATE TABLE order_line (
  ol_o_id INT NOT NULL, ol_d_id TINYINT NOT NULL, ol_w_id SMALLINT NOT NULL, ol_number TINYINT NOT NULL, ol_i_id INT,
  ol_supply_w_id SMALLINT, ol_delivery_d DATETIME, ol_quantity TINYINT, ol_amount DECIMAL(8,2), ol_dist_info CHAR(24),
  PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)
) ENGINE=InnoDB;
CREATE TABLE item (
  i_id INT NOT NULL PRIMARY KEY, i_im_id INT, i_name VARCHAR(24), i_price DECIMAL(5,2), i_data VARCHAR(50)
) ENGINE=InnoDB;
CREATE TABLE stock (
  s_i_id INT NOT NULL, s_w_id SMALLINT NOT NULL, s_quantity SMALLINT, s_dist_01 CHAR(24), s_dist_02 CHAR(24),
  s_dist_03 CHAR(24), s_dist_04 CHAR(24), s_dist_05 CHAR(24), s_dist_06 CHAR(24), s_dist_07 CHAR(24),
  s_dist_08 CHAR(24), s_dist_09 CHAR(24), s_dist_10 CHAR(24), s_ytd INT, s_order_cnt INT, s_remote_cnt INT,
  s_data VARCHAR(50), PRIMARY KEY (s_w_id, s_i_id)
) ENGINE=InnoDB;

CREATE TABLE word (n INT NOT NULL PRIMARY KEY, w CHAR(32) NOT NULL) ENGINE=InnoDB;
INSERT INTO word
  SELECT n, RPAD(CONCAT(HEX(2654435761 * n), HEX(2246822519 * n)), 32, HEX(3266489917 * n)) FROM number;
INSERT INTO item
  SELECT n, 1 + CRC32(n) % 10000, LEFT(w, 14 + n % 10), 1 + (CRC32(CONCAT('p', n)) % 9901) / 100,
    IF(CRC32(CONCAT('o', n)) % 10 = 0, CONCAT(LEFT(w, 13), 'ORIGINAL', RIGHT(w, 13)), CONCAT(w, LEFT(w, n % 18)))
  FROM word;
INSERT INTO warehouse
  SELECT n, CONCAT('W', n), 'STREET1', 'STREET2', 'CITY', 'ST', '123411111', 0.1000, 300000.00
  FROM number WHERE n <= {{warehouses}};
INSERT INTO district
  SELECT d.n, w.w_id, CONCAT('D', d.n), 'STREET1', 'STREET2', 'CITY', 'ST', '123411111',
    (CRC32(CONCAT(w.w_id, 'd', d.n)) % 2001) / 10000, 30000.00, 3001
  FROM warehouse w, number d WHERE d.n <= 10;
INSERT INTO stock
  SELECT n, w_id, 10 + CRC32(CONCAT(w_id, 's', n)) % 91, LEFT(w, 24), RIGHT(w, 24), MID(w, 2, 24), MID(w, 3, 24),
    MID(w, 4, 24), MID(w, 5, 24), MID(w, 6, 24), MID(w, 7, 24), MID(w, 8, 24), REVERSE(LEFT(w, 24)), 0, 0, 0,
    CONCAT(w, LEFT(w, n % 18))
  FROM warehouse, word ORDER BY w_id, n;
-- The first thousand of a district have the thousand names once each, the others are spread over them.
INSERT INTO customer
  SELECT c.n, d.d_id, d.d_w_id, LEFT(f.w, 8 + c.n % 8), 'OE', CONCAT(x.s, y.s, z.s), 'STREET1',
    'STREET2', 'CITY', 'ST', '123411111', '0123456789012345', '2026-01-01', IF(CRC32(c.n) % 10 = 0, 'BC', 'GC'),
    50000.00, (CRC32(CONCAT('q', c.n)) % 5001) / 10000, -10.00, 10.00, 1, 0,
    REPEAT(f.w, 10 + c.n % 5)
  FROM district d
    JOIN number c ON c.n <= 3000
    JOIN word f ON f.n = c.n * 10 + d.d_id
    JOIN syllable x ON x.d = FLOOR(IF(c.n <= 1000, c.n - 1, CRC32(CONCAT('n', c.n)) % 1000) / 100)
    JOIN syllable y ON y.d = FLOOR(IF(c.n <= 1000, c.n - 1, CRC32(CONCAT('n', c.n)) % 1000) / 10) % 10
    JOIN syllable z ON z.d = IF(c.n <= 1000, c.n - 1, CRC32(CONCAT('n', c.n)) % 1000) % 10
  ORDER BY d.d_w_id, d.d_id, c.n;
INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)
  SELECT c_id, c_d_id, c_w_id, c_d_id, c_w_id, '2026-01-01', 10.00, LEFT(w, 24)
  FROM customer JOIN word ON n = c_id;
-- A permutation of the customers: 1,009 has no divisor in common with 3,000.
INSERT INTO orders
  SELECT o.n, d.d_id, d.d_w_id, 1 + (o.n * 1009 + d.d_id) % 3000, '2026-01-01',
    IF(o.n <= 2100, 1 + CRC32(CONCAT('c', o.n)) % 10, NULL), 5 + CRC32(CONCAT(d.d_id, 'l', o.n)) % 11, 1
  FROM district d, number o WHERE o.n <= 3000 ORDER BY d.d_w_id, d.d_id, o.n;
INSERT INTO new_order SELECT o_id, o_d_id, o_w_id FROM orders WHERE o_id > 2100;
INSERT INTO order_line
  SELECT o_id, o_d_id, o_w_id, number.n, 1 + CRC32(CONCAT(o_w_id, o_d_id, 'i', o_id, '.', number.n)) % 100000, o_w_id,
    IF(o_id <= 2100, o_entry_d, NULL), 5, IF(o_id <= 2100, 0, 0.01 + (CRC32(CONCAT(o_id, 'a', number.n)) % 999999) / 100),
    LEFT(w, 24)
  FROM orders JOIN number ON number.n <= o_ol_cnt JOIN word ON word.n = o_id * 20 + number.n
  ORDER BY o_w_id, o_d_id, o_id, number.n;
ANALYZE TABLE warehouse, district, customer, orders, new_order, order_line, item, stock;
