-- swap_settings: writes a queue's settings, unless somebody else has changed them since they were
-- read, and tells every node.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the queue
--         4 its settings as they were read (JSON)
--         5 the new ones
-- RETURNS 1, or 0 when others are stored
if redis.call('HGET', key('queues'), ARGV[3]) ~= ARGV[4] then return 0 end
redis.call('HDEL', key('queues'), '') -- a removal first: a full store lets the script go on
redis.call('HSET', key('queues'), ARGV[3], ARGV[5])
redis.call('PUBLISH', key('queues'), ARGV[3])
return 1
