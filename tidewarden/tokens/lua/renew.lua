-- renew: prolongs intents whose requests are sent again because nobody knows their outcome, and
-- their leases. When the first request was sent stays written down: a provider's grace counts from
-- there.
-- DURABILITY strongest
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, lease, lease ms
-- RETURNS per account: 1, or 0 when the lease is not current, or the intent another's or gone:
--         nothing is to be sent then
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local reply = {}
for i = 3, #ARGV, 3 do
  local account, lease, lease_ms =
    ARGV[i], int(i + 1, 'lease', 0, LEASE_MAX), int(i + 2, 'lease ms', 1, NEVER)
  local raw, r = redis.call('HGET', INTENTS, account), current_lease(account, lease)
  if r and raw and #raw >= INTENT and select(6, struct.unpack('>I4I4I6I6c8I8', raw)) == lease then
    redis.call(
      'HSET',
      INTENTS,
      account,
      string.sub(raw, 1, 14) .. struct.pack('>I6', now + lease_ms) .. string.sub(raw, 21)
    )
    r.lease_ms, r.sticky = lease_ms, true
    tries_put(account, r)
    redis.call(
      'ZADD',
      key('leased:' .. index_of(r.holder)),
      text(lease_clock() + lease_ms),
      account
    )
    note(now + lease_ms)
    reply[#reply + 1] = 1
  else
    reply[#reply + 1] = 0
  end
end
return finish(reply)
