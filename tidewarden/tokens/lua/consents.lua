-- consents: leaves notices in the outbox that the refresh tokens of accounts end by themselves in
-- so many days, each once for an account and its grant. Of several that are due together only the
-- last is left; none is left whose time was over before the end was known.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 accounts at most  4… days, the fewest first
-- RETURNS {notices left, 1: there is more to be done at once | 0}
-- In the meta hash `consents` is since when there are any (shards without are not looked at), and
-- `consents <days>` up to which end (a score) that notice was looked at.
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local DAY, ROOM = 86400000, OUTBOX_MAX / 2
local most = int(3, 'accounts', 1, 1000)
local CONSENTS, NOTICED = key('account_consents'), key('account_noticed')
local told = 0

-- Whether this notice is news: not of a grant that had it or a later one, unless the end has moved
-- by more than a day since.
local function news(account, grant, days, end_ms)
  local former = redis.call('HGET', NOTICED, account)
  if not former then return true end
  local its_grant, its_days, its_end = string.match(former, '^(%d+) (%d+) (%d+)$')
  return not its_grant
    or tonumber(its_grant) ~= grant
    or tonumber(its_days) > days
    or end_ms > tonumber(its_end) + DAY
end

-- False: the outbox has no room for it.
local function notice(account, days)
  local row, details =
    redis.call('HGET', ACCOUNTS, account), redis.call('HGET', key('account_details'), account)
  local head = row and row_head(row)
  local grant, end_ms = 0, 0
  if details and #details >= 11 then
    grant, end_ms = select(2, struct.unpack('>BI4I6', details))
  end
  -- As a node of an earlier version leaves it.
  if not row or head and head.grant ~= grant or redis.call('ZSCORE', DEAD, account) then
    note_details(account)
    return true
  end
  if not news(account, grant, days, end_ms) then return true end
  if
    redis.call('ZCARD', key('account_outbox')) >= ROOM
    or not post_event('account.consent_expiring', account, days .. ' ' .. text(end_ms))
  then
    return false
  end
  redis.call('HSET', NOTICED, account, grant .. ' ' .. days .. ' ' .. text(end_ms))
  told = told + 1
  return true
end

local since = tonumber(redis.call('HGET', META, 'consents'))
for i = 4, since and #ARGV or 0 do
  local days = int(i, 'days', 1, 3650)
  local field, upto = 'consents ' .. days, now + days * DAY
  local from = redis.call('HGET', META, field)
  if not from or tonumber(from) < since + days * DAY then from = text(since + days * DAY) end
  local due =
    redis.call('ZRANGEBYSCORE', CONSENTS, '(' .. from, text(upto), 'WITHSCORES', 'LIMIT', 0, most)
  local full = #due == 2 * most
  -- With whoever stands at the last one's place: from there it goes on behind all of them.
  if full then
    local last = due[#due]
    local same = redis.call('ZRANGEBYSCORE', CONSENTS, last, last)
    for j = 1, #same do
      due[#due + 1], due[#due + 2] = same[j], last
    end
  end
  local last = from -- before it all have had theirs
  for j = 1, #due, 2 do
    if due[j + 1] ~= last then
      from, last = last, due[j + 1]
    end
    if not notice(due[j], days) then
      redis.call('HSET', META, field, from)
      return finish({ told, 0 })
    end
  end
  if not full and tonumber(last) < upto then last = text(upto) end
  redis.call('HSET', META, field, last)
  if full then return finish({ told, 1 }) end
end
return finish({ told, 0 })
