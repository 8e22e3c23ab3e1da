-- As many rows as five copies of the world's cities, each name in five of them; names as wide as the study's.
CREATE TABLE city_huge (
  ID integer NOT NULL,
  Name char(35) NOT NULL,
  Country char(3) NOT NULL,
  Population integer NOT NULL
);
INSERT INTO city_huge
SELECT i, CASE WHEN i % 4079 = 0 THEN 'Amsterdam' ELSE 'Town ' || i % 4079 END, 'C' || i % 239 % 100, 1000 + i * 7919 % 1000000
FROM generate_series(1, 20395) AS i;
VACUUM ANALYZE city_huge;
