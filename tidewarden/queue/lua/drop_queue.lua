-- drop_queue: takes a queue's name out of the cluster's, and notes it as dropped.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the queue
--         4 its settings as they were read (JSON)
--         5 what is noted of it (JSON, see queue/settings.py); "": it is looked whether it may be
--           dropped, and nothing is done
--         6 it leaves the topics that it is linked to 0|1
--         7 queues that may be noted as dropped
--         8 the part of them that one user may have made, in thousandths
-- RETURNS {word, to how many topics it was linked}; word: 1 done, 0 other settings are stored or
--         none, 'LINKED' it is linked, and nothing was done
-- Errors  FULL: so many queues were dropped within a day, or of those that its maker made, that no
--         more are noted
-- Until the note is removed nobody makes a queue of this name by using it.
local name, left = ARGV[3], {}
if redis.call('HGET', key('queues'), name) ~= ARGV[4] then return { 0, 0 } end
-- A look by force leaves out the topics, which may be long.
local look, force = ARGV[5] == '', ARGV[6] == '1'
local all = look and force and {} or redis.call('HGETALL', key('topics'))
for i = 1, #all, 2 do
  if string.find(all[i + 1], name, 1, true) and has(all[i + 1], name) then
    left[#left + 1], left[#left + 2] = all[i], without(all[i + 1], name)
  end
end
if #left > 0 and not force then return { 'LINKED', #left / 2 } end
-- Its shards' records stay for as long as the note, so it takes up as many places as before.
local share, most = shares(), int(7, 'dropped queues', 1, 1000000)
local maker, places = share.maker('queue', name), share.places('queue', name)
local there = share.all('drop', redis.call('HLEN', key('dropped')))
if there + places > most then
  refuse('FULL ' .. text(most) .. ' queues were dropped within a day, as many as may be')
end
local mine, part = share.of('drop', maker), int(8, 'share', 1, 1000)
share.check(maker, 'queues that were dropped', 'within a day', mine, there, most, part, places)
if look then return { 1, #left / 2 } end
redis.call('HDEL', key('queues'), name)
redis.call('HSET', key('dropped'), name, ARGV[5])
for i = 1, #left, 2 do
  redis.call('HSET', key('topics'), left[i], left[i + 1])
  share.resized(
    'topic', left[i], share.maker('topic', left[i]), share.needed('topic', left[i + 1])
  )
  redis.call('PUBLISH', key('queues'), left[i])
end
share.unmade('queue', name)
share.made('drop', name, maker, places)
redis.call('PUBLISH', key('queues'), name)
return { 1, #left / 2 }
