-- swap_settings: writes a queue's settings, unless somebody else has changed them since they were
-- read, and tells every node.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the queue
--         4 its settings as they were read (JSON)
--         5 the new ones
--         6 queues at most | 0: it is not looked how many there are
--         7 the user who changes them ("": nobody in particular)
--         8 the part of them that one user may make, in thousandths
--         9 it is looked whether they may be changed, and nothing is done 0|1
-- RETURNS 1, or 0 when others are stored
-- Errors  FULL: with so many shards it takes up more places than there are, or than its user may
if redis.call('HGET', key('queues'), ARGV[3]) ~= ARGV[4] then return 0 end
local share, name, most, user = shares(), ARGV[3], int(6, 'queues', 0, 1000000), ARGV[7]
local had, needed = share.places('queue', name), share.needed('queue', ARGV[5])
local maker, grows = share.maker('queue', name), needed > share.needed('queue', ARGV[4])
-- Whoever has it cut into more takes all of it upon himself.
if not grows or user == '' then user = maker end
if most > 0 and grows then
  local there = share.all('queue', redis.call('HLEN', key('queues')))
  if there - had + needed > most then
    refuse('FULL there is no room for so many shards: in limits.queues_max 16 count as a queue')
  end
  local what, part = 'queues (each 16 shards count)', int(8, 'share', 1, 1000)
  local kept = user == maker and had or 0
  local mine = share.of('queue', user)
  share.check(user, what, 'limits.queues_max', mine, there - had + kept, most, part, needed - kept)
end
if ARGV[9] == '1' then return 1 end
redis.call('HDEL', key('queues'), '') -- a removal first: a full store lets the script go on
redis.call('HSET', key('queues'), ARGV[3], ARGV[5])
if most > 0 then share.resized('queue', name, user, needed) end
redis.call('PUBLISH', key('queues'), ARGV[3])
return 1
