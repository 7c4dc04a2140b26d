-- intent: somebody is about to refresh accounts whose tasks it has leased; written down before any byte is sent.
-- The lease is made sticky and runs on from now, so that it outlives the longest request and ends by its time alone. A
-- lease that is current vouches for grant and generation: whatever changes a row voids the lease on its task.
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, lease, lease ms
-- RETURNS per account: {'OK', now_ms, row, troubles | nil, spare | nil, intent found open | nil}, {'NOTHELD'}, {'GONE'} (no such
--         account: its task is removed) or {'OPEN', until_ms}: another's intent that is not over
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local items = {}
for i = 3, #ARGV, 3 do items[#items + 1] = {ARGV[i], int(i + 1, 'lease', 0, LEASE_MAX), int(i + 2, 'lease ms', 1, NEVER)} end
local reply = {}
for i = 1, #items do
  local account, lease, lease_ms = unpack(items[i])
  local r = held(account, lease)
  local row = r and redis.call('HGET', ACCOUNTS, account)
  local found = row and redis.call('HGET', INTENTS, account)
  local open_until = found and select(4, struct.unpack('>I4I4I6I6c8I8', found)) or 0
  if not r then reply[i] = {'NOTHELD'}
  elseif not row then
    drop_task(account)
    reply[i] = {'GONE'}
  elseif open_until > now then reply[i] = {'OPEN', open_until}
  else
    local head, lease_end = row_head(row), now + lease_ms
    redis.call('HSET', INTENTS, account, struct.pack('>I4I4I6I6c8I8', head.grant, head.generation, now, lease_end, head.current, lease) .. CALLER)
    redis.call('ZADD', key('leased:' .. index_of(r.holder)), text(lease_clock() + lease_ms), account)
    note(lease_end)
    r.lease_ms = lease_ms
    set_sticky(account, r, true)
    reply[i] = {'OK', now, row, redis.call('HGET', TROUBLES, account), redis.call('HGET', SPARES, account), found}
  end
end
return finish(reply)
