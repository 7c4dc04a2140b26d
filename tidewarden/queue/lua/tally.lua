-- tally: reads what has happened to a task of a tube; changes nothing.
-- DURABILITY none
-- GROWS   no
-- READS
-- KEYS    1 the shard  2 the view
-- ARGV    3 id
-- RETURNS {delay in seconds at the put, delay now, times reserved, timed out, released, buried,
--         kicked}; noughts in a queue that is no tube
open()
return finish(tally(ARGV[3]) or { 0, 0, 0, 0, 0, 0, 0 })
