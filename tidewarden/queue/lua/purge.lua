-- purge: removes tasks in one state, the first of it or those named, also while somebody holds
-- them.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 state (delayed, ready, leased, buried, waiting)
--         4 tasks at most
--         5… ids (none: the first ones)
-- RETURNS how many were removed
open()
local state, most, named = ARGV[3], int(4, 'tasks', 1, 1000), #ARGV > 4
local indexes = indexes_of(state)
if #ARGV > 1004 then refuse('BADARG a purge names at most 1000 tasks') end

-- Ids in an index, which leave it; of delayed ones the named are known by their records.
local function taken_out(index, left)
  local ids = {}
  if index == 'delayed' and not named then
    local first = delayed_first(left)
    for j = 1, #first, 2 do
      ids[#ids + 1] = first[j]
      delayed_remove(first[j], first[j + 1])
    end
    return ids
  elseif index == 'delayed' then
    for i = 5, #ARGV do
      local t, r = task_get(ARGV[i]), tries_get(ARGV[i])
      if #ids < left and t and locate(ARGV[i], t, r) == 'delayed' then
        ids[#ids + 1] = ARGV[i]
        delayed_remove(ARGV[i], delayed_at(t, r))
      end
    end
    return ids
  elseif not named then
    ids = redis.call('ZRANGE', key(index), 0, left - 1)
    if #ids > 0 then redis.call('ZREM', key(index), unpack(ids)) end
    return ids
  end
  for i = 5, #ARGV do
    if #ids < left and redis.call('ZREM', key(index), ARGV[i]) == 1 then ids[#ids + 1] = ARGV[i] end
  end
  return ids
end

-- Tasks that have left their index are removed with their records.
local function remove(ids, index)
  local unreadable, there = {}, {}
  for j = 1, #ids do
    -- Long payloads are not read for nothing.
    local raw = S.lanes == 1 and record_get(ids[j])
    local t = raw and decode(raw)
    there[j] = raw or S.lanes ~= 1 and stored(ids[j])
    if t and t.lane then
      laned().leave(ids[j], t, state)
    elseif raw and not t then
      unreadable[#unreadable + 1] = ids[j]
    end
  end
  if index == 'leased:~' then
    for j = 1, #ids do
      local r, unread = tries_get(ids[j])
      if r then
        redis.call('ZREM', key('held'), string.sub(r.holder, 2) .. ids[j])
      elseif unread then
        unreadable[#unreadable + 1] = ids[j]
      end
    end
  end
  if #unreadable > 0 then uproot(unreadable) end
  if S.ttls == 1 then redis.call('ZREM', key('expiring'), unpack(ids)) end
  records_drop(ids)
  redis.call('HDEL', key('tries'), unpack(ids))
  for j = 1, #ids do
    if there[j] then
      removed(ids[j], false)
    else
      count('strays')
    end
  end
end

local gone = 0
for i = 1, #indexes do
  local ids = gone < most and taken_out(indexes[i], most - gone) or {}
  if #ids > 0 then
    for j = 1, state == 'waiting' and #ids or 0 do
      ids[j] = select(2, laned().parse(ids[j], 13))
    end
    remove(ids, indexes[i])
    gone = gone + #ids
  end
end
if gone > 0 then count('purged', gone) end
freed = gone > 0
return finish(gone)
