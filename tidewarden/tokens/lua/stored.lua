-- stored: writes refreshed pairs back. Only grant and generation are compared, never the lease: an
-- answer in hand is the truth.
-- DURABILITY strongest
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, grant and generation of the request, new row (details before it
--         take the place of the account's), due ms, deadline ms, the row it came from if its token
--         may be needed again (without its access token, see SPARES), else empty; `drop`: what does
--         not fit is no spare
-- RETURNS per account: STORED, RECOVERED (that, and it is to be told, see outbox_claim.lua),
--         ALREADY (this very pair is there, perhaps sealed anew since, or its refresh token), SPARE
--         (kept aside: the row had moved on), MOVED (it had, and the pair was to be dropped then,
--         or has other parameters: nobody sends it to where the account is now), PAST (dropped:
--         refreshes have followed this one or its like, and where tokens are used once its use now
--         would end the grant), GONE (no such account; or one of its name that was put after it was
--         deleted: what came for the old one may be somebody else's)
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
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
    ARGV[i + 6] or '',
    details,
  }
end
if #items == 0 or #items > 1000 then refuse('BADARG pairs of 1 to 1000 accounts at a time') end

-- An account that fails or is dead has a pair to try from now on: it does not wait for its next
-- try.
local function hope(account, row, displaced)
  local died, r = hope_for(account), tries_get(account)
  if not died and not redis.call('ZSCORE', FAILING, account) or r and r.holder ~= '' then return end
  redis.call('ZADD', FAILING, text(now), account)
  local head = row_head(row)
  -- As it was found: a newer version's, say, which knows what to do with a spare.
  if not head then return end
  local expires = head.expires
  local t = token_task(now, expires > 0 and expires or now + S.urgent_ms)
  -- A dead account has no task.
  if died or displaced then
    settle_task(account, row, t)
  else
    put_task(account, t)
  end
end

-- Whether the answer is of a request before the refresh token was refused: nobody is at it now, and
-- it was refused.
local function refused_since(account)
  local r, raw = tries_get(account), redis.call('HGET', TROUBLES, account)
  if not raw or r and r.holder ~= '' then return false end
  local read, troubles = pcall(cmsgpack.unpack, raw)
  return read and type(troubles) == 'table' and (tonumber(troubles[2]) or 0) > 0
end

-- Whether the account that a request was for was deleted since: one put after that began with a
-- greater grant.
local function another(account, grant, head)
  return grant < head.grant
    and grant < (tonumber(redis.call('HGET', key('account_first'), account)) or head.grant)
end

-- One pair, whatever has become of its account meanwhile.
local function store(account, grant, generation, row, due, deadline, previous, details)
  local old = redis.call('HGET', ACCOUNTS, account)
  local head = old and row_head(old)
  if not old or head and another(account, grant, head) then return 'GONE' end
  if string.sub(old, 1, HEAD) == string.sub(row, 1, HEAD) then return 'ALREADY' end
  if head and head.grant == grant and head.generation == generation then
    local refused = refused_since(account)
    redis.call('HDEL', INTENTS, account)
    redis.call('HDEL', SPARES, account)
    displace(account, old) -- voids whatever lease lies on the task
    redis.call('HSET', ACCOUNTS, account, row)
    note_details(account, details, true)
    if #previous > HEAD then redis.call('HSET', SPARES, account, previous) end
    count('accounts refreshed')
    if redis.call('ZSCORE', DEAD, account) or refused then
      -- What was refused meanwhile may have ended the grant: that is found out before it is told to
      -- be well.
      hope(account, row, true)
      return 'STORED'
    end
    local recovered = recover(account)
    settle_task(account, row, token_task(due, deadline))
    return recovered and 'RECOVERED' or 'STORED'
  end
  if previous == 'drop' then return 'MOVED' end
  if head and head.grant == grant and head.generation > generation + 1 then return 'PAST' end
  if head and head.current == row_head(row).current then return 'ALREADY' end
  if details and elsewhere(details, redis.call('HGET', key('account_details'), account)) then
    return 'MOVED'
  end
  redis.call('HSET', SPARES, account, row)
  hope(account, old)
  count('spares kept')
  return 'SPARE'
end

-- Most pairs are plain: their tasks are leased, and nothing was the matter with their accounts (who
-- fails or is dead has troubles). All of these are read at once, and written at once: the calls
-- cost more than what they do.
local names, times, reply = {}, {}, {}
for i = 1, #items do
  local account = items[i][1]
  names[i], times[account] = account, (times[account] or 0) + 1
end
local rows, troubles =
  redis.call('HMGET', ACCOUNTS, unpack(names)), redis.call('HMGET', TROUBLES, unpack(names))
local tries = redis.call('HMGET', key('tries'), unpack(names))
-- Of a row's head what they are judged by: grant, generation, expires_at_ms, due_ms; nothing of one
-- that cannot be read. The table of all fields takes far longer.
local function numbers(raw)
  if #raw < HEAD or string.byte(raw) ~= 1 then return end
  local grant, generation, _, expires, due = struct.unpack('>I4I4I6I6I6', raw, 3)
  return grant, generation, expires, due
end
local plain, written, spares, leased, later, odd = {}, {}, {}, {}, {}, {}
for i = 1, #items do
  local account, grant, generation, row, due, deadline, previous = unpack(items[i])
  local old, r =
    rows[i], tries[i] and not troubles[i] and times[account] == 1 and tries_decode(tries[i])
  local was, before = numbers(old or '')
  local _, new, expires_ms, due_ms = numbers(row)
  if
    r
    and r.holder ~= ''
    and index_of(r.holder) ~= '~'
    and was == grant
    and before == generation
    and new > generation
  then
    plain[#plain + 1] = account
    written[#written + 1], written[#written + 2] = account, row
    if #previous > HEAD then
      spares[#spares + 1], spares[#spares + 2] = account, previous
    end
    leased[r.holder] = leased[r.holder] or {}
    table.insert(leased[r.holder], account)
    -- Not what the row says.
    if due <= now or due ~= due_ms or deadline ~= expires_ms then
      odd[#odd + 1] = i
    else
      later[#later + 1], later[#later + 2] = due, account
      note(due)
    end
    if items[i][8] then note_details(account, items[i][8], true) end
    reply[i] = 'STORED'
  end
end
if #plain > 0 then
  redis.call('HDEL', INTENTS, unpack(plain))
  redis.call('HDEL', SPARES, unpack(plain))
  for holder, accounts in pairs(leased) do
    redis.call('ZREM', key('leased:' .. holder), unpack(accounts))
  end
  redis.call('HDEL', key('tries'), unpack(plain)) -- voids the leases
  redis.call('HSET', ACCOUNTS, unpack(written))
  if #spares > 0 then redis.call('HSET', SPARES, unpack(spares)) end
  count('accounts refreshed', #plain)
  if S.accounts ~= 1 then set('accounts', 1) end
  records_drop(plain)
  delayed_put(later)
  for _, i in ipairs(odd) do
    settle_task(items[i][1], items[i][4], token_task(items[i][5], items[i][6]))
  end
end
for i = 1, #items do
  if not reply[i] then reply[i] = store(unpack(items[i], 1, 8)) end
end
return finish(reply)
