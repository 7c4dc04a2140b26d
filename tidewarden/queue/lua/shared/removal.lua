-- removal: how tasks go for good, whatever state they were in.

-- Tasks, at most 1000, are removed that have left the index where those of a state stand.
local function remove_tasks(ids, state, index)
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
