-- place: reads from the directory where a schedule lies.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the directory's shard  2 the view
-- ARGV    3 name
-- RETURNS the place, `queue stamp` and who put it, or "" when it has none
open()
return finish(redis.call('HGET', key('names'), ARGV[3]) or '')
