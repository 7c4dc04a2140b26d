-- ack: acknowledges tasks: they are done and removed. A repeated ack gets the same answer while the
-- task's tombstone lasts.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per task: id, lease, result ("": none)
-- RETURNS per task: 1, or 0 when the lease is not current, or -1 when the store is full and the
--         result longer than the task: nothing was done
-- A tombstone is `lease ack`, and a blank and the result when there is one. A task of an id we made
-- leaves one only with a result, or where somebody waits.
open()
local ids, leases, results = {}, {}, {}
for i = 3, #ARGV, 3 do
  if not ARGV[i + 2] then refuse('BADARG an ack has three arguments a task: id, lease, result') end
  ids[#ids + 1] = ARGV[i]
  leases[#leases + 1] = int(i + 1, 'lease', 0, 9007199254740991)
  results[#results + 1] = ARGV[i + 2]
end
if #ids == 0 or #ids > 1000 then refuse('BADARG an ack names 1 to 1000 tasks') end
local records = redis.call('HMGET', key('tries'), unpack(ids))
local reply, gone, acked, by, memory, kept = {}, {}, {}, {}, {}, {}
-- Behind a removal a full store lets any result through, so it is asked before: by a write of
-- nothing, which it refuses.
local full
local function too_long(id, result)
  if full == nil then
    local asked = redis.pcall('SETRANGE', key('done:' .. id), 0, '')
    full = type(asked) == 'table' and string.find(asked.err or '', 'OOM', 1, true) ~= nil
  end
  return full and #result > #(records_get({ id })[1] or '')
end
for i = 1, #ids do
  local id, lease = ids[i], leases[i]
  local current, holder, own
  if records[i] then
    current, holder, own = tries_head(records[i])
  end
  if current == lease and holder ~= '' then
    local ms = memory_ms(id, not own or results[i] ~= '')
    if results[i] ~= '' and ms > 0 and not acked[id] and too_long(id, results[i]) then
      reply[i] = -1
    else
      reply[i] = 1
    end
    if reply[i] == 1 and not acked[id] then
      acked[id] = true
      gone[#gone + 1] = id
      local index = index_of(holder)
      local list = by[index] or {}
      by[index] = list
      list[#list + 1] = id
      if index ~= holder then kept[#kept + 1] = string.sub(holder, 2) .. id end
      memory[i] = ms
    end
  else
    local done = redis.call('GET', key('done:' .. id))
    reply[i] = done and string.match(done, '^(%d+) ack') == text(lease) and 1 or 0
  end
end
if #gone > 0 then
  for holder, list in pairs(by) do
    redis.call('ZREM', key('leased:' .. holder), unpack(list))
  end
  if #kept > 0 then redis.call('ZREM', key('held'), unpack(kept)) end
  if S.lanes == 1 then -- only the body knows the lane
    local bodies = records_get(gone)
    for i = 1, #gone do
      local t = bodies[i] and decode(bodies[i])
      if t and t.lane then
        laned().leave(gone[i], t, 'leased')
      elseif bodies[i] and not t then
        uproot({ gone[i] })
      end
    end
  end
  redis.call('HDEL', key('tries'), unpack(gone))
  records_drop(gone)
  for i = 1, #gone do
    over(gone[i], 'done')
  end
  count('acked', #gone)
  freed = true
  for i = 1, #ids do
    if (memory[i] or 0) > 0 then
      local word = text(leases[i]) .. ' ack'
      if results[i] ~= '' then word = word .. ' ' .. results[i] end
      redis.call('SET', key('done:' .. ids[i]), word, 'PX', text(memory[i]))
    end
  end
end
return finish(reply)
