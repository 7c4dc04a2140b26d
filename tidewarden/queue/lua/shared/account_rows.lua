-- account_rows: what the queue knows of tokens: an account's row stands for its task's record.
-- A token's task says nothing that its account's row does not say, so it has no record of its own,
-- which spares 23 bytes and a hash entry per token. For that these functions know where a row has
-- its times (see tokens/accounts/account_record.py), and what lies beside accounts (see the prelude
-- of the tokens' scripts). Nothing else here knows of accounts but that S.accounts is 1 in their
-- shards.

-- The packed record that an account's row stands for: priority 50, an id of ours, the times of the
-- row (see task.lua). Bytes 17 to 22 of a row are its expires_at_ms, 23 to 28 its due_ms.
local function derived(row)
  if #row < 44 or string.byte(row) ~= 1 then return '' end -- nobody can read it, here
  local due, deadline = string.sub(row, 23, 28), string.sub(row, 17, 22)
  if due == deadline then return '\144' .. due end
  return '\145' .. due .. deadline
end

-- What lies beside the accounts of a shard, in the order in which it is checked: key, command that
-- reads a page of it, command that removes an entry.
local function account_parts()
  return {
    { 'account_troubles', 'HSCAN', 'HDEL' },
    { 'account_dead', 'ZSCAN', 'ZREM' },
    { 'account_lost', 'SSCAN', 'SREM' },
    { 'account_stopped', 'SSCAN', 'SREM' },
    { 'account_failing', 'ZSCAN', 'ZREM' },
    { 'account_told', 'SSCAN', 'SREM' },
    { 'account_intents', 'HSCAN', 'HDEL' },
    { 'account_spares', 'HSCAN', 'HDEL' },
    { 'account_first', 'HSCAN', 'HDEL' },
    { 'account_forced', 'ZSCAN', 'ZREM' },
    { 'account_details', 'HSCAN', 'HDEL' },
    { 'account_noticed', 'HSCAN', 'HDEL' },
    { 'account_consents', 'ZSCAN', 'ZREM' },
  }
end
