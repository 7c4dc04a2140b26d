-- note_dropped: changes what is noted of a dropped queue, or forgets that it was dropped.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the queue
--         4 the note as it was read (JSON)
--         5 the new one ("": it is forgotten)
-- RETURNS 1, or 0 when another is stored
if redis.call('HGET', key('dropped'), ARGV[3]) ~= ARGV[4] then return 0 end
redis.call('HDEL', key('dropped'), ARGV[3])
if ARGV[5] ~= '' then
  redis.call('HSET', key('dropped'), ARGV[3], ARGV[5])
else
  shares().unmade('drop', ARGV[3])
end
return 1
