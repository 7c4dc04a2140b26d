-- put: stores new grants, each only if the account is still as it was read. A refresh of it that is
-- under way finds the grant moved.
-- DURABILITY strongest
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, grant and generation as read (the shard's floor and 0: no such
--         account), row (its details before it, else there are none from now on), due ms, deadline
--         ms, what is to be told of it as connected (see outbox.py; "": nothing)
-- RETURNS per account: 1 stored, 2 stored, and something of it is to be told (see
--         outbox_claim.lua), 0 the account is no longer as it was read
open()
effect = 'grows'
local items = {}
for i = 3, #ARGV, 7 do
  local row, details = checked_row(i + 3)
  items[#items + 1] = {
    ARGV[i],
    int(i + 1, 'grant', 0, COUNT_MAX),
    int(i + 2, 'generation', 0, COUNT_MAX),
    row,
    int(i + 4, 'due ms', 0, NEVER),
    int(i + 5, 'deadline ms', 0, NEVER),
    details or '',
    ARGV[i + 6] or '',
  }
end
local floor = tonumber(redis.call('HGET', META, 'floor')) or 0
local reply = {}
for i = 1, #items do
  local account, grant, generation, row, due, deadline, details, connected = unpack(items[i])
  local old = redis.call('HGET', ACCOUNTS, account)
  local head = { grant = floor, generation = 0 }
  if old then head = row_head(old) end
  if head and head.grant == grant and head.generation == generation then
    if old then displace(account, old) end
    local told = old and recover(account)
    if connected ~= '' then told = post_event('account.connected', account, connected) or told end
    if old then
      redis.call('ZREM', key('account_forced'), account) -- that was about another token
      redis.call('HDEL', INTENTS, account)
      redis.call('HSETNX', key('account_first'), account, text(grant))
      local kept = redis.call('HGET', SPARES, account)
      local s = kept and row_head(kept)
      -- The old grant's previous token.
      if s and s.grant == grant and s.generation + 1 == generation then
        redis.call('HDEL', SPARES, account)
      end
    end
    redis.call('HSET', ACCOUNTS, account, row)
    note_details(account, details, true)
    settle_task(account, row, token_task(due, deadline))
    count('accounts put')
    reply[i] = told and 2 or 1
  else
    reply[i] = 0
  end
end
return finish(reply)
