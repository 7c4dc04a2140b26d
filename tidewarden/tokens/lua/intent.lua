-- intent: writes down, before any byte is sent, that the caller is about to refresh accounts whose
-- tasks it has leased. The lease becomes sticky and runs on from now, so that it outlives the
-- longest request and ends by its time alone. A current lease vouches for grant and generation:
-- whatever changes a row voids the lease on its task.
-- DURABILITY strongest
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, lease, lease ms
-- RETURNS per account: {'OK', now_ms, row, troubles | nil, spare | nil, intent found open | nil,
--         details | nil}, {'NOTHELD'}, {'GONE'} (no such account: its task is removed) or {'OPEN',
--         until_ms}: another's intent that is not over
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local accounts, leases, lengths = {}, {}, {}
for i = 3, #ARGV, 3 do
  local n = #accounts + 1
  accounts[n], leases[n], lengths[n] =
    ARGV[i], int(i + 1, 'lease', 0, LEASE_MAX), int(i + 2, 'lease ms', 1, NEVER)
end
if #accounts == 0 or #accounts > 1000 then
  refuse('BADARG intents of 1 to 1000 accounts at a time')
end
-- All of them are read at once, and written at once: the calls cost more than what they do.
local tries, rows =
  redis.call('HMGET', key('tries'), unpack(accounts)),
  redis.call('HMGET', ACCOUNTS, unpack(accounts))
local found = redis.call('HMGET', INTENTS, unpack(accounts))
local begun, ids, intents, records, indexes = {}, {}, {}, {}, {}
local reply, clock = {}, lease_clock()
for i = 1, #accounts do
  local account, row = accounts[i], rows[i]
  local r = tries[i] and tries_decode(tries[i])
  if found[i] and #found[i] < INTENT then found[i] = false end -- nobody can read it
  local open_until = begun[account]
    or found[i] and select(4, struct.unpack('>I4I4I6I6c8I8', found[i]))
    or 0
  if not r or r.holder == '' or r.lease ~= leases[i] then
    reply[i] = { 'NOTHELD' }
  elseif not row then
    drop_task(account)
    reply[i] = { 'GONE' }
  elseif #row < HEAD or string.byte(row) ~= 1 then -- this version cannot read it
    set_aside(account)
    reply[i] = { 'NOTHELD' }
  elseif open_until > now then
    reply[i] = { 'OPEN', open_until }
  else
    local lease_end = now + lengths[i]
    begun[account] = lease_end
    intents[#intents + 1], ids[#ids + 1] = account, i
    -- Grant, generation and fingerprint as the row has them.
    intents[#intents + 1] = string.sub(row, 3, 10)
      .. struct.pack('>I6I6', now, lease_end)
      .. string.sub(row, 37, 44)
      .. struct.pack('>I8', leases[i])
      .. CALLER
    r.lease_ms, r.sticky = lengths[i], true
    records[#records + 1], records[#records + 2] = account, tries_encode(r)
    local list = indexes[r.holder] or {}
    indexes[r.holder] = list
    list[#list + 1], list[#list + 2] = clock + lengths[i], account
    note(lease_end)
    reply[i] = { 'OK', now, row, false, false, found[i] or false, false }
  end
end
if #ids > 0 then
  redis.call('HSET', INTENTS, unpack(intents))
  redis.call('HSET', key('tries'), unpack(records))
  for holder, list in pairs(indexes) do
    redis.call('ZADD', key('leased:' .. index_of(holder)), unpack(list))
  end
  local names = {}
  for i = 1, #ids do
    names[i] = accounts[ids[i]]
  end
  local troubles, spares =
    redis.call('HMGET', TROUBLES, unpack(names)), redis.call('HMGET', SPARES, unpack(names))
  local details = redis.call('HMGET', key('account_details'), unpack(names))
  for i = 1, #ids do
    local one = reply[ids[i]]
    one[4], one[5], one[7] = troubles[i], spares[i], details[i]
  end
end
return finish(reply)
