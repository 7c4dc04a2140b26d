-- page: reads a page of the accounts of a shard; changes nothing. An account that stays is met at
-- least once, perhaps twice.
-- DURABILITY none
-- GROWS   no
-- READS
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- ARGV    3 cursor (0: from the start)
--         4 about how many
--         5 all | troubled (those that fail, are dead, lost or stopped)
-- RETURNS {next cursor (0: the end), now_ms, {account, head of the row, troubles | nil, details |
--         nil} …}
open()
local most = int(4, 'count', 1, 1000)
if not string.match(ARGV[3], '^%d+$') then refuse('BADARG the cursor is ' .. ARGV[3]) end
local troubled = ARGV[5] == 'troubled'
local scan = redis.call('HSCAN', troubled and TROUBLES or ACCOUNTS, ARGV[3], 'COUNT', most)
local found = scan[2]
local reply = { scan[1], now }
for i = 1, #found, 2 do
  local account = found[i]
  local row, troubles
  if troubled then
    row, troubles = redis.call('HGET', ACCOUNTS, account), found[i + 1]
  else
    row, troubles = found[i + 1], redis.call('HGET', TROUBLES, account)
  end
  if row and row_head(row) then
    reply[#reply + 1] = {
      account,
      string.sub(row, 1, HEAD),
      troubles or false,
      redis.call('HGET', key('account_details'), account),
    }
  end -- the doctor names those that nobody can read
end
return finish(reply)
