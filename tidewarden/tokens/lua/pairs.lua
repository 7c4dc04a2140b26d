-- pairs: reads a page of the sealed pairs of a shard, whole, for the vault alone; changes nothing.
-- An account that stays is met at least once.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 cursor (0: from the start)  4 about how many
-- RETURNS {next cursor (0: the end), {account, row, spare | nil, troubles | nil, details | nil} …}
open()
local most = int(4, 'count', 1, 1000)
if not string.match(ARGV[3], '^%d+$') then refuse('BADARG the cursor is ' .. ARGV[3]) end
local scan = redis.call('HSCAN', ACCOUNTS, ARGV[3], 'COUNT', most)
local found = scan[2]
local reply = { scan[1] }
for i = 1, #found, 2 do
  local account = found[i]
  reply[#reply + 1] = {
    account,
    found[i + 1],
    redis.call('HGET', SPARES, account),
    redis.call('HGET', TROUBLES, account),
    redis.call('HGET', key('account_details'), account),
  }
end
return finish(reply)
