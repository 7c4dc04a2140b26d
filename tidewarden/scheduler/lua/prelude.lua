-- prelude: the rows of schedules, which lie in the shards of their tasks; local functions only.
-- Keys of a shard:
--   schedules  hash name → msgpack {1, stamp, anchor_ms, spec, task, payload}; spec and task are
--              msgpack maps of their own, so that they are compared as bytes and handed to the
--              leader without the payload
--   ticks      zset name by next tick ms
--   stuck      hash name → its true tick, for a schedule whose next tick could not be computed and
--              that is tried again later
--   paused     hash name → its true tick, for a schedule that stands still: in `ticks` it has NEVER
--   makers     in the directory: hash user → how many schedules of his it names
--   runs       hash name → its latest run, and `run_of`: see results.lua of the queue
-- A row that this version cannot read (a newer node wrote it) has an empty spec: the leader then
-- leaves it for later.
local function made_by(user)
  return tonumber(redis.call('HGET', key('makers'), user) or 0) or 0
end

-- Counts one more or less for who put the schedule of a place, where the place says so.
local function note_maker(place, change)
  local user = place and string.match(place, '^%S+ %S+ (%S+)$')
  if not user then return end
  if redis.call('HINCRBY', key('makers'), user, change) <= 0 then
    redis.call('HDEL', key('makers'), user)
  end
end

local function row_readable(row)
  if type(row) ~= 'table' or row[1] ~= 1 or type(row[3]) ~= 'number' then return false end
  for _, i in ipairs({ 2, 4, 5, 6 }) do
    if type(row[i]) ~= 'string' then return false end
  end
  local ok, task = pcall(cmsgpack.unpack, row[5])
  if not ok or type(task) ~= 'table' then return false end
  local least = {
    delay_ms = 0,
    within_ms = -1,
    priority = 0,
    lease_ms = 0,
    attempts = 0,
    backoff_ms = 0,
    ttl_ms = 0,
  }
  for name, low in pairs(least) do
    local n = task[name] or name == 'ttl_ms' and 0
    -- Of NaN nothing is true.
    if type(n) ~= 'number' or not (n >= low and n <= NEVER and n % 1 == 0) then return false end
  end
  return task.priority <= 99
    and task.attempts <= 65535
    and (task.lane == nil or type(task.lane) == 'string' and #task.lane <= 200)
end

local function row_get(name)
  local raw = redis.call('HGET', key('schedules'), name)
  if not raw then return nil end
  local ok, row = pcall(cmsgpack.unpack, raw)
  if not ok or not row_readable(row) then
    return { stamp = '', anchor = 0, spec = '', task = '', payload = '' }
  end
  return { stamp = row[2], anchor = row[3], spec = row[4], task = row[5], payload = row[6] }
end

-- The latest run of a schedule is another one now, of the task `id`; without it there is none.
local function set_run(name, id, due, how)
  local before = redis.call('HGET', key('runs'), name)
  local open = before and string.match(before, '^%d+ %d+ %l+ (%S+)$')
  if open then redis.call('HDEL', key('run_of'), open) end
  if id then
    local run = text(due) .. ' ' .. text(now) .. ' ' .. how .. ' ' .. id
    redis.call('HSET', key('runs'), name, run)
    redis.call('HSET', key('run_of'), id, name)
  elseif before then
    redis.call('HDEL', key('runs'), name)
  end
  if open or id then set('runs', redis.call('HLEN', key('run_of'))) end
end

-- The latest run of a schedule as list.lua shows it: {} or {due ms, put ms, tick | hand, id, the
-- state of its task (as in indexes.lua; done, deleted; `unknown`: it has gone and nobody said how),
-- when that ended ms | -1, reason, attempts}.
local function run_shown(name)
  local run = redis.call('HGET', key('runs'), name) or ''
  local due, put, how, id, rest = string.match(run, '^(%d+) (%d+) (%l+) (%S+)(.*)$')
  if not due then return {} end
  local shown = { tonumber(due), tonumber(put), how, id, 'unknown', -1, '', 0 }
  local word, ended = string.match(rest, '^ (%l+) (%d+)$')
  if word then
    shown[5], shown[6] = word, tonumber(ended)
    return shown
  end
  local t, r = both_get(id)
  local place = t and locate(id, t, r) or 'buried'
  local buried = place == 'buried' and redis.call('ZSCORE', key('buried'), id)
  if place ~= 'lost' and (place ~= 'buried' or buried) then shown[5] = place end
  if buried then shown[6] = tonumber(buried) end
  if r then
    shown[7], shown[8] = r.reason, r.attempts
  end
  return shown
end

local function row_drop(name)
  set_run(name)
  redis.call('HDEL', key('stuck'), name)
  redis.call('HDEL', key('paused'), name)
  redis.call('ZREM', key('ticks'), name)
  return redis.call('HDEL', key('schedules'), name)
end

-- The true tick of a schedule, nil when it has none. One that was kept and that nobody can read is
-- now.
local function tick_of(name)
  local kept = redis.call('HGET', key('stuck'), name) or redis.call('HGET', key('paused'), name)
  if not kept then return tonumber(redis.call('ZSCORE', key('ticks'), name)) end
  local tick = string.match(kept, '^%d+$') and tonumber(kept)
  return tick and tick < NEVER and tick or now
end

-- What list.lua says of a schedule; nil when there is none of this name. head: so many bytes of its
-- payload.
local function row_shown(name, head)
  local row = row_get(name)
  if not row then return nil end
  local stands = redis.call('HEXISTS', key('paused'), name) == 1 and 2
    or redis.call('HEXISTS', key('stuck'), name)
  return {
    name,
    tick_of(name) or -1,
    stands,
    row.anchor,
    row.spec,
    row.task,
    string.sub(row.payload, 1, head),
    #row.payload,
    run_shown(name),
  }
end

-- A task of a schedule is put, its times counted from `from` ms; own: its id is one of ours, of
-- which nothing is remembered.
local function put_scheduled(id, row, options, from, own)
  local due = math.min(from + options.delay_ms, NEVER - 1)
  local deadline = due
  if options.within_ms >= 0 then deadline = math.min(from + options.within_ms, NEVER - 1) end
  local expires = 0
  if (options.ttl_ms or 0) > 0 then
    expires = math.min(from + options.ttl_ms, NEVER - 1)
  elseif S.ttl_ms > 0 then
    expires = math.min(due + S.ttl_ms, NEVER - 1)
  end
  put_task(id, {
    priority = options.priority,
    due = due,
    deadline = deadline,
    lease_ms = options.lease_ms,
    attempts_max = options.attempts,
    backoff_ms = options.backoff_ms,
    own = own,
    expires = expires,
    lane = options.lane ~= '' and options.lane or nil,
    payload = row.payload,
  })
end

-- The earliest tick of the shard goes into its record, where the leader sees it. A tick concerns
-- the leader alone, so it has an alarm of its own.
local function note_ticks()
  local head = redis.call('ZRANGE', key('ticks'), 0, 0, 'WITHSCORES')
  local tick = tonumber(head[2]) or NEVER
  if tick ~= S.tick then
    if tick < S.tick then alarm_lowered = true end
    set('tick', tick)
  end
  return tick < NEVER and S.tick or -1
end
