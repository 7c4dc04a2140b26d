-- get: reads accounts; changes nothing.
-- DURABILITY none
-- GROWS   no
-- READS
-- KEYS    1 the shard  2 the view
-- ARGV    3… accounts
-- RETURNS per account: {now_ms, the shard's floor of grants, row | nil, troubles | nil, the grant
--         that it began with | nil: the row's, details | nil}
open()
local floor = tonumber(redis.call('HGET', META, 'floor')) or 0
local names = { unpack(ARGV, 3) }
local rows, troubles =
  redis.call('HMGET', ACCOUNTS, unpack(names)), redis.call('HMGET', TROUBLES, unpack(names))
local first, details =
  redis.call('HMGET', key('account_first'), unpack(names)),
  redis.call('HMGET', key('account_details'), unpack(names))
local reply = {}
for i = 1, #names do
  reply[i] = { now, floor, rows[i], troubles[i], first[i], details[i] }
end
return finish(reply)
