-- ack: tasks are done. The same ack said again is answered the same while the task's tombstone lasts.
-- KEYS    1 the shard  2 the view
-- ARGV    3… per task: id, lease
-- RETURNS per task: 1, or 0 when the lease is not current
open()
local ids, leases = {}, {}
for i = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  leases[#leases + 1] = int(i + 1, 'lease', 0, 9007199254740991)
end
if #ids == 0 or #ids > 1000 then refuse('BADARG an ack names 1 to 1000 tasks') end
local records = redis.call('HMGET', key('tries'), unpack(ids))
local reply, gone, ended, by = {}, {}, {}, {}
for i = 1, #ids do
  local id, lease = ids[i], leases[i]
  local r = records[i] and tries_decode(records[i])
  if r and r.holder ~= '' and r.lease == lease then
    reply[i] = 1
    if not ended[id] then
      ended[id] = true
      gone[#gone + 1] = id
      by[r.holder] = by[r.holder] or {}
      table.insert(by[r.holder], id)
      if r.own then leases[i] = nil end
    else
      leases[i] = nil
    end
  else
    reply[i] = redis.call('GET', key('done:' .. id)) == text(lease) .. ' ack' and 1 or 0
    leases[i] = nil
  end
end
if #gone > 0 then
  for holder, list in pairs(by) do redis.call('ZREM', key('leased:' .. holder), unpack(list)) end
  redis.call('HDEL', key('tries'), unpack(gone))
  redis.call('HDEL', key('tasks'), unpack(gone))
  count('acked', #gone)
  if S.dedup_ms > 0 then
    for i = 1, #ids do
      if leases[i] then redis.call('SET', key('done:' .. ids[i]), text(leases[i]) .. ' ack', 'PX', text(S.dedup_ms)) end
    end
  end
end
return finish(reply)
