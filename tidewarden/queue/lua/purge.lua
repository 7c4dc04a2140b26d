-- purge: remove tasks in one state, the first of it or those named, also while somebody holds them.
-- KEYS    1 the shard  2 the view
-- ARGV    3 state (delayed, ready, leased, buried)  4 tasks at most  5… ids (none: the first ones)
-- RETURNS how many were removed
open()
local state, most, named = ARGV[3], int(4, 'tasks', 1, 1000), #ARGV > 4
local indexes = indexes_of(state)
if #ARGV > 1004 then refuse('BADARG a purge names at most 1000 tasks') end

local function gathered(index, left)
  if not named then return redis.call('ZRANGE', key(index), 0, left - 1) end
  local ids = {}
  for i = 5, #ARGV do
    if #ids < left and redis.call('ZSCORE', key(index), ARGV[i]) then ids[#ids + 1] = ARGV[i] end
  end
  return ids
end

local gone = 0
for i = 1, #indexes do
  local ids = gone < most and gathered(indexes[i], most - gone) or {}
  if #ids > 0 then
    local bodies = redis.call('HMGET', key('tasks'), unpack(ids))
    redis.call('ZREM', key(indexes[i]), unpack(ids))
    if indexes[i] == 'leased:~' then
      for j = 1, #ids do
        local r = tries_get(ids[j])
        if r then redis.call('ZREM', key('held'), string.sub(r.holder, 2) .. ids[j]) end
      end
    end
    if S.ttls == 1 then redis.call('ZREM', key('expiring'), unpack(ids)) end
    redis.call('HDEL', key('tasks'), unpack(ids))
    redis.call('HDEL', key('tries'), unpack(ids))
    for j = 1, #ids do
      if bodies[j] then removed(ids[j], false) else count('strays') end
    end
    gone = gone + #ids
  end
end
if gone > 0 then count('purged', gone) end
freed = gone > 0
return finish(gone)
