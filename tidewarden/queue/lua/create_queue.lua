-- create_queue: reads what a name stands for; a name that stands for nothing yet becomes a queue.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the name
--         4 settings of a new queue (JSON)
--         5 queues at most | 0: the queue is made in any case, on a full store too, where a node
--           would not start without
--         6 the user who makes it ("": nobody in particular)
--         7 the part of them that one user may make, in thousandths
--         8 what is noted of the dropped queue of this name that the new one replaces ("": it
--           replaces none)
-- RETURNS {what, text}: `queue` or `new` and the settings, `topic` and the names of its queues,
--         separated by blanks, `dropped` and what is noted of that, `full` and how many queues
--         there are; error FULL: the user has its share
local settings = redis.call('HGET', key('queues'), ARGV[3])
if settings then return { 'queue', settings } end
local links = redis.call('HGET', key('topics'), ARGV[3])
if links then return { 'topic', links } end
local dropped = redis.call('HGET', key('dropped'), ARGV[3])
if dropped and dropped ~= ARGV[8] then return { 'dropped', dropped } end
local most = int(5, 'queues', 0, 1000000)
local share, needed = shares(), shares().needed('queue', ARGV[4])
local there = share.all('queue', redis.call('HLEN', key('queues')))
if most > 0 and there + needed > most then return { 'full', text(there) } end
if most > 0 and ARGV[6] ~= '' then
  local mine, part = share.of('queue', ARGV[6]), int(7, 'share', 1, 1000)
  share.check(ARGV[6], 'queues', 'limits.queues_max', mine, there, most, part, needed)
end
-- A removal first: a full store lets the script go on.
if most == 0 then redis.call('HDEL', key('queues'), '') end
redis.call('HSET', key('queues'), ARGV[3], ARGV[4])
redis.call('HDEL', key('dropped'), ARGV[3])
share.unmade('drop', ARGV[3])
if most > 0 then share.made('queue', ARGV[3], ARGV[6], needed) end
redis.call('PUBLISH', key('queues'), ARGV[3])
return { 'new', ARGV[4] }
