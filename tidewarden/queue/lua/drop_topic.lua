-- drop_topic: removes a topic. Its queues stay, with what they hold.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the topic
-- RETURNS names of the queues that were linked to it, separated by blanks; nil: there is no such
--         topic
local name = ARGV[3]
local links = redis.call('HGET', key('topics'), name)
if not links then return false end
redis.call('HDEL', key('topics'), name)
shares().unmade('topic', name)
redis.call('PUBLISH', key('queues'), name)
return links
