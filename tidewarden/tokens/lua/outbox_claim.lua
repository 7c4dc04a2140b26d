-- outbox_claim: hands out the shard's outbox of events to one node at a time, until that says that
-- they were delivered.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 entries at most
--         4 ms for which they are this caller's to tell
--         5… entries that were told
-- RETURNS entries, the oldest first, lines of: event id, kind, ms, account ("": of the whole
--         provider), the rest what the kind has
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local most, claim = int(3, 'entries', 1, 1000), int(4, 'ms', 1, NEVER)
for i = 5, #ARGV do
  redis.call('ZREM', key('account_outbox'), ARGV[i])
end
local entries = redis.call('ZRANGE', key('account_outbox'), 0, most - 1)
local teller = redis.call('HMGET', META, 'teller', 'telling')
if #entries == 0 then
  if teller[1] then redis.call('HDEL', META, 'teller', 'telling') end
elseif teller[1] and teller[1] ~= CALLER and tonumber(teller[2]) > now then
  entries = {}
else
  redis.call('HSET', META, 'teller', CALLER, 'telling', text(now + claim))
end
return finish(entries)
