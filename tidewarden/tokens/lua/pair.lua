-- pair: reads what is sealed of accounts; changes nothing.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… accounts
-- RETURNS per account: {row | nil, spare | nil, details | nil}
open()
local reply = {}
for i = 3, #ARGV do
  reply[i - 2] = {
    redis.call('HGET', ACCOUNTS, ARGV[i]),
    redis.call('HGET', SPARES, ARGV[i]),
    redis.call('HGET', key('account_details'), ARGV[i]),
  }
end
return finish(reply)
