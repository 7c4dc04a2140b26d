-- delete: removes accounts, with all that belongs to them. An answer that is still under way for
-- one finds no row and is dropped.
-- DURABILITY strongest
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… accounts
-- RETURNS per account: {row, spare | nil, details | nil} as they were, or 0 when there was none
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local reply = {}
local floor = tonumber(redis.call('HGET', META, 'floor')) or 0
for i = 3, #ARGV do
  local account = ARGV[i]
  local raw = redis.call('HGET', ACCOUNTS, account)
  if raw then
    local spare, details =
      redis.call('HGET', SPARES, account), redis.call('HGET', key('account_details'), account)
    note_details(account, '')
    drop_task(account)
    redis.call('HDEL', ACCOUNTS, account)
    redis.call('HDEL', INTENTS, account)
    redis.call('HDEL', SPARES, account)
    redis.call('HDEL', key('account_first'), account)
    redis.call('ZREM', key('account_forced'), account)
    clear_troubles(account)
    local head = row_head(raw)
    -- A row that nobody can read had no more consents than that above the floor at which it began;
    -- and grants have to last for ever.
    floor = head and math.max(floor, head.grant)
      or math.max(floor, math.min(floor + 1000, 2147483648))
    redis.call('HSET', META, 'floor', text(floor))
    count('accounts deleted')
    reply[#reply + 1] = { raw, spare, details }
  else
    reply[#reply + 1] = 0
  end
end
return finish(reply)
