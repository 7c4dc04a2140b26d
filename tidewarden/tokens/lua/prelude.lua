-- prelude: the accounts that lie beside the tasks of a token queue's shard; local functions only.
-- Keys of a shard:
--   accounts          hash account → row (see tokens/accounts/account_record.py; only its head is
--                     read here)
--   account_intents   hash account → grant 4, generation 4, started_ms 6, until_ms 6,
--                     fingerprint 8, lease 8, holder
--   account_spares    hash account → a row whose grant or generation no longer fitted when it came,
--                     or the one before, where a used token works on
--   account_troubles  hash account → what refreshing it met with since its last success (msgpack,
--                     which Python alone reads)
--   account_held      zset account by the end of a wait that is not the account's fault; one that
--                     was served sooner stays until then
--   account_failing   zset account by next try
--   account_dead      zset account by time of death
--   account_lost      set of dead accounts whose refresh token was lost with an answer
--   account_stopped   set of dead accounts of whose grants nobody knows that they ended
--   account_client    see client.lua; first shard only
--   account_told      set of living accounts whose troubles were reported
--   account_outbox    zset event by time, not delivered yet (see outbox_claim.lua)
--   account_first     hash account → the grant that it began with, where it had another since (see
--                     another() of stored.lua)
--   account_forced    zset account by time, of those that somebody had refreshed by hand in the
--                     last minute, or will have in a moment
--   account_details   hash account → version 1, grant 4, consent_ms 6 (0: nobody is told of that),
--                     rest (see Details of tokens/accounts/account_record.py)
--   account_consents  zset account by consent_ms, of living accounts whose refresh tokens end then,
--                     whatever is done
--   account_noticed   hash account → grant, days and consent_ms of the last notice that this comes;
--                     only consents.lua uses it
--   account_meta      hash floor → the highest grant of any account deleted here, so that no number
--                     is ever given twice
-- A token's task has the account's name, no payload, due = the row's due_ms, deadline = its
-- expires_at_ms: while it is just that it has no record of its own (see layout.lua), and a dead
-- account has none at all. One that failed, and is late when it is tried again, has the time of
-- that try for a deadline (failed.lua).
local ACCOUNTS, INTENTS, SPARES, TROUBLES, FAILING, DEAD, META
local function prepare()
  ACCOUNTS, INTENTS, SPARES, TROUBLES =
    key('accounts'), key('account_intents'), key('account_spares'), key('account_troubles')
  FAILING, DEAD, META = key('account_failing'), key('account_dead'), key('account_meta')
end
local HEAD, INTENT = 44, 36 -- bytes of a row's head, and of an intent before its holder
local NORMAL, WANTED = 50, 40 -- priorities: a token somebody waits for goes before those merely due
local OUTBOX_MAX = 100000 -- of a shard; some 200 bytes each
local LEASE_MAX, COUNT_MAX = 9007199254740991, 4294967295

-- Nil for a row that this version cannot read: others' accounts in the same call go on.
local function row_head(raw)
  if #raw < HEAD or string.byte(raw) ~= 1 then return nil end
  local _, _, grant, generation, stored, expires, due, origin, current =
    struct.unpack('>BBI4I4I6I6I6c8c8', raw)
  return {
    grant = grant,
    generation = generation,
    stored = stored,
    expires = expires,
    due = due,
    origin = origin,
    current = current,
  }
end

-- A row, and the details that stand before it; nil: none do.
local function checked_row(i)
  local raw, details = ARGV[i], nil
  if raw and #raw > 5 and string.byte(raw) == 254 then
    local length = struct.unpack('>I4', string.sub(raw, 2, 5))
    details, raw = string.sub(raw, 6, 5 + length), string.sub(raw, 6 + length)
  end
  if not raw or #raw < HEAD or string.byte(raw) ~= 1 then
    refuse('BADARG argument ' .. i .. ' is no row')
  end
  return raw, details
end

-- Whether two details say different things of where an account's tokens may be sent: of the msgpack
-- behind their heads the first item.
local function elsewhere(one, other)
  local places = {}
  for i, raw in ipairs({ one or '', other or '' }) do
    local read, found = pcall(cmsgpack.unpack, string.sub(raw, 12))
    places[i] = read and type(found) == 'table' and type(found[1]) == 'table' and found[1] or {}
  end
  for i = 1, 2 do
    for name, value in pairs(places[i]) do
      if places[3 - i][name] ~= value then return true end
    end
  end
  return false
end

-- The details of an account from now on; empty: none, nil: as they are. It stands among those whose
-- consents end while it has a task.
local function note_details(account, details, alive)
  local known = details or redis.call('HGET', key('account_details'), account)
  -- A spare is of where the account was: it would be sent to where the account is.
  if
    details
    and redis.call('HEXISTS', SPARES, account) == 1
    and elsewhere(details, redis.call('HGET', key('account_details'), account))
  then
    redis.call('HDEL', SPARES, account)
  end
  if details == '' then
    redis.call('HDEL', key('account_details'), account)
  elseif details then
    redis.call('HSET', key('account_details'), account, details)
  end
  local told_ms = alive and known and #known >= 11 and select(3, struct.unpack('>BI4I6', known))
    or 0
  if told_ms > 0 then
    -- A fraction by its name: a million that were put together do not lie at one place, where
    -- nobody could go on from the middle.
    local score =
      string.format('%.4f', told_ms + tonumber(string.sub(redis.sha1hex(account), 1, 3), 16) / 4096)
    local new = redis.call('ZADD', key('account_consents'), score, account) == 1
    if new and redis.call('ZCARD', key('account_consents')) == 1 then
      redis.call('HSET', META, 'consents', text(now))
    end
  elseif redis.call('ZREM', key('account_consents'), account) == 1 then
    redis.call('HDEL', key('account_noticed'), account)
  end
end

local function token_task(due, deadline, priority)
  return {
    priority = priority or NORMAL,
    due = due,
    deadline = deadline,
    lease_ms = 0,
    attempts_max = 0,
    backoff_ms = 0,
    own = true,
    payload = '',
  }
end

-- Before the row goes, and before the account is among the dead: the row says where the task lies.
local function drop_task(account)
  note_details(account)
  displace(account)
  records_drop({ account })
  local r = tries_get(account)
  if not r then return end -- else its row went before its task, which should not be
  if r.holder ~= '' then unlease(account, r) end
  tries_drop(account)
end

-- Put the task of an account whose row has just been written; displace() was called before that, so
-- that nothing is known of any tries.
local function settle_task(account, row, t)
  if S.accounts ~= 1 then set('accounts', 1) end
  task_put(account, t, row)
  if t.due <= now then return make_ready(account, t) end
  delayed_add(account, t.due)
  note(t.due)
end

-- Something that is to be told of, written down in the script that does it; `data`: what
-- tokens/events/outbox.py makes the event of. False: so much waits to be told that this is not,
-- lest it fill the store.
local function post_event(kind, account, data)
  if redis.call('ZCARD', key('account_outbox')) >= OUTBOX_MAX then
    count('events lost')
    return false
  end
  local id = 'evt_'
    .. string.sub(redis.sha1hex(table.concat({ P, kind, account, text(now) }, '\n')), 1, 24)
  redis.call(
    'ZADD',
    key('account_outbox'),
    text(now),
    table.concat({ id, kind, text(now), account, data }, '\n')
  )
  return true
end

-- It is among the dead no more, whether lost or stopped; whether it was.
local function revive(account)
  redis.call('SREM', key('account_lost'), account)
  redis.call('SREM', key('account_stopped'), account)
  return redis.call('ZREM', DEAD, account) == 1
end

-- It is among the dead no more, but has not recovered yet; whether it was dead.
local function hope_for(account)
  local died = revive(account)
  if died then redis.call('SADD', key('account_told'), account) end
  return died
end

-- All is well with this account from now on; whether it is to be told so, for it was told
-- otherwise. Who fails or is dead has troubles.
local function clear_troubles(account)
  local troubles = redis.call('HGET', TROUBLES, account)
  if not troubles then return false end
  redis.call('HDEL', TROUBLES, account)
  redis.call('ZREM', FAILING, account)
  local told = redis.call('SREM', key('account_told'), account) == 1
  return (revive(account) or told) and troubles
end

local function recover(account)
  local troubles = clear_troubles(account)
  if troubles then post_event('account.recovered', account, troubles) end
  return troubles
end

-- How many of `wanted` requests may go by a rate of one per `each` microseconds, a second's worth
-- at once, or one where that is less; the ms to wait where none may; up to when the rate is used up
-- then. `spent`: up to when it was.
local function rate_grant(spent, now_us, each, wanted)
  local burst = math.max(1000000, each)
  local granted, full_at, opens_us = bucket_grant(spent + burst, now_us, each, burst, wanted, 1)
  local wait = granted > 0 and 0 or math.ceil((opens_us - now_us) / 1000)
  return granted, wait, math.floor(full_at - burst)
end
