-- prelude of the schedules' scripts: where a schedule's rows lie, in the shard of its tasks. Local functions only.
-- `schedules` hash name → msgpack {1, stamp, anchor_ms, spec, task, payload}; spec and task are msgpack maps of their own,
-- so that they are compared as bytes and handed to the leader without the payload. `ticks` zset name by next tick ms.
-- `stuck` hash name → its true tick, for a schedule whose next tick could not be computed and that is tried again later.
-- `paused` hash name → its true tick, for one that stands still: in `ticks` it has NEVER.
-- A row that this version cannot read (a newer node wrote it) has an empty spec: the leader then leaves it for later.
local function row_readable(row)
  if type(row) ~= 'table' or row[1] ~= 1 or type(row[3]) ~= 'number' then return false end
  for _, i in ipairs({2, 4, 5, 6}) do
    if type(row[i]) ~= 'string' then return false end
  end
  local ok, task = pcall(cmsgpack.unpack, row[5])
  if not ok or type(task) ~= 'table' then return false end
  for _, name in ipairs({'delay_ms', 'within_ms', 'priority', 'lease_ms', 'attempts', 'backoff_ms'}) do
    if type(task[name]) ~= 'number' then return false end
  end
  return task.priority >= 0 and task.priority <= 99
end

local function row_get(name)
  local raw = redis.call('HGET', key('schedules'), name)
  if not raw then return nil end
  local ok, row = pcall(cmsgpack.unpack, raw)
  if not ok or not row_readable(row) then return {stamp = '', anchor = 0, spec = '', task = '', payload = ''} end
  return {stamp = row[2], anchor = row[3], spec = row[4], task = row[5], payload = row[6]}
end

local function row_drop(name)
  redis.call('HDEL', key('stuck'), name)
  redis.call('HDEL', key('paused'), name)
  redis.call('ZREM', key('ticks'), name)
  return redis.call('HDEL', key('schedules'), name)
end

local function tick_of(name)
  return tonumber(redis.call('HGET', key('stuck'), name) or redis.call('HGET', key('paused'), name) or redis.call('ZSCORE', key('ticks'), name))
end

-- The earliest tick of the shard goes into its record, where the leader sees it.
local function note_ticks()
  local head = redis.call('ZRANGE', key('ticks'), 0, 0, 'WITHSCORES')
  local tick = tonumber(head[2]) or NEVER
  note_tick(tick)
  return tick < NEVER and S.tick or -1
end
