-- detail: writes other details of accounts whose grants and pairs stay as they are.
-- DURABILITY strongest
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, grant and generation as read, row with its details before it (of
--         the row the head alone is looked at)
-- RETURNS per account: 1, or 0 when the account is no longer as it was read
open()
effect = 'grows'
local items, reply = {}, {}
for i = 3, #ARGV, 4 do
  local _, details = checked_row(i + 3)
  items[#items + 1] = {
    ARGV[i],
    int(i + 1, 'grant', 0, COUNT_MAX),
    int(i + 2, 'generation', 0, COUNT_MAX),
    details or '',
  }
end
for i = 1, #items do
  local account, grant, generation, details = unpack(items[i])
  local old = redis.call('HGET', ACCOUNTS, account)
  local head = old and row_head(old)
  reply[i] = 0
  if head and head.grant == grant and head.generation == generation then
    note_details(account, details, not redis.call('ZSCORE', DEAD, account))
    reply[i] = 1
  end
end
return finish(reply)
