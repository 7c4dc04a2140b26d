-- put_again: makes a buried task ready with another payload, in one step.
-- DURABILITY queue
-- GROWS   no
-- VERBS   kick
-- KEYS    1 the shard  2 the view
-- ARGV    3 id
--         4 payload
--         5 when it was buried (unix ms; 0: whenever that was)
-- RETURNS 1; 0: it has that payload and is not buried any more; 'NOTFOUND'; 'NOTHELD': it is
--         leased; 'KICKED': it is not buried any more, or since another time
open()
local id, payload, buried = ARGV[3], ARGV[4], int(5, 'buried', 0, NEVER)
local t, r = both_get(id, true)
if not t then return finish('NOTFOUND') end
local stood = redis.call('ZSCORE', key('buried'), id)
if not stood then
  if t.payload == payload then return finish(0) end
  return finish(r and r.holder ~= '' and 'NOTHELD' or 'KICKED')
end
if buried > 0 and tonumber(stood) ~= buried then return finish('KICKED') end
-- What grows, a full store refuses here.
if #payload > #t.payload then redis.call('HSET', key('shard'), '', '') end
redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
t.payload = payload
task_put(id, t)
local all = ARGV
ARGV, joined = { all[1], CALLER, '1', id, '', '0' }, true
kick()
ARGV, joined = all, false
return finish(1)
