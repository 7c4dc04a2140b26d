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
-- RETURNS {word, to how many topics it was linked}; word: 1 done, 0 other settings are stored or
--         none, 'LINKED' it is linked, and nothing was done
-- Errors  FULL: so many queues were dropped within a day that no more are noted
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
local NOTED_MAX = 100000
if redis.call('HLEN', key('dropped')) >= NOTED_MAX then
  refuse('FULL ' .. text(NOTED_MAX) .. ' queues were dropped within a day, as many as may be')
end
if look then return { 1, #left / 2 } end
redis.call('HDEL', key('queues'), name)
redis.call('HSET', key('dropped'), name, ARGV[5])
for i = 1, #left, 2 do
  redis.call('HSET', key('topics'), left[i], left[i + 1])
  redis.call('PUBLISH', key('queues'), left[i])
end
shares().unmade('queue', name)
redis.call('PUBLISH', key('queues'), name)
return { 1, #left / 2 }
