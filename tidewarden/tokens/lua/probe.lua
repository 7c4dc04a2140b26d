-- probe: leases one ready task of a shard although its queue is paused. First goes an account that
-- can be saved now alone (a priority before those that somebody waits for), then one that was well
-- and still lives, the first to expire first, then one that was well, the last to expire first, or,
-- if many that fail stand before it, the first. Only where the caller allows it: one that was never
-- tried, by chance, because those that were imported together may all be bad; or one that fails,
-- namely the one whose next try has been due for longest, so that none is asked twice before
-- others.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 lease ms
--         4 who will do: 0 who was refreshed well last time, 1 who was never tried, too, 2 one that
--           fails, too
--         5 whoever can be saved now alone goes first, 0|1: those, too, may be accounts that fail
--           for good
--         6 a number drawn by the caller
-- RETURNS a list of at most one {id, lease, payload, attempt, deadline_ms, lease_end_ms}
-- Errors  STALE: the caller's boot was declared dead
open()
alive(CALLER)
local lease_ms, level, saving, drawn =
  int(3, 'lease ms', 1, NEVER), int(4, 'level', 0, 2), int(5, 'saving', 0, 1) == 1, int(
    6,
    'number drawn',
    0,
    NEVER
  )
local LOOKED, PAGES = 50, 16
if now >= S.alarm then promote(100) end
local function well(ids)
  if #ids == 0 then return nil end
  local troubles, rows =
    redis.call('HMGET', TROUBLES, unpack(ids)),
    level == 0 and redis.call('HMGET', ACCOUNTS, unpack(ids))
  for i, id in ipairs(ids) do
    -- Its first flag.
    local refreshed = rows and rows[i] and #rows[i] >= HEAD and string.byte(rows[i], 2) % 2 == 1
    if not troubles[i] and (refreshed or not rows) then return id end
  end
end
-- The first in that order who will do. Those that fail may be many, and due before all others; of
-- those that were never tried the search begins somewhere by chance.
local function first_well(ready, first_end, last_end)
  local upward = first_end == '-inf' or last_end == '+inf'
  local command = upward and 'ZRANGEBYSCORE' or 'ZREVRANGEBYSCORE'
  for page = level > 0 and -1 or 0, PAGES - 1 do
    local more = page < 0
    for _, name in ipairs(ready) do
      local first = page * LOOKED
      if page < 0 then
        local least, most = upward and first_end or last_end, upward and last_end or first_end
        first = drawn % math.max(1, redis.call('ZCOUNT', name, least, most))
      end
      local ids = redis.call(command, name, first_end, last_end, 'LIMIT', first, LOOKED)
      local id = well(ids)
      if id then return id, name end
      more = more or #ids == LOOKED
    end
    if not more then return nil end
  end
end
local function chosen()
  local ready = {}
  for word in string.gmatch(S.pris, '%S+') do
    local name = key('ready:' .. word)
    ready[#ready + 1] = name
    if saving and tonumber(word) < WANTED then
      local id = redis.call('ZRANGE', name, 0, 0)[1]
      if id then return id, name end
    end
  end
  local id, name = first_well(ready, '(' .. text(now), '+inf')
  if not id then
    id, name = first_well(ready, text(now), '-inf')
  end
  if not id then
    id, name = first_well(ready, '-inf', text(now))
  end
  if id then return id, name end
  if level < 2 then return nil end
  local failing = redis.call('ZRANGEBYSCORE', FAILING, '-inf', text(now), 'LIMIT', 0, LOOKED)
  for _, id in ipairs(failing) do
    for _, name in ipairs(ready) do
      if redis.call('ZSCORE', name, id) then return id, name end
    end
  end
end
local reply = {}
local id, name = chosen()
local raw = id and record_get(id)
if raw then
  local t, r = decode(raw), tries_get(id) or fresh_tries()
  redis.call('ZREM', name, id)
  set('taken', S.taken + 1)
  r.lease, r.attempts, r.sticky, r.own, r.lease_ms, r.holder =
    new_lease(), math.min(r.attempts + 1, 65535), false, true, lease_ms, CALLER
  tries_put(id, r)
  redis.call('ZADD', key('leased:' .. CALLER), text(lease_clock() + lease_ms), id)
  if not has(S.holders, CALLER) then set('holders', with(S.holders, CALLER)) end
  note(now + lease_ms)
  count('taken')
  reply[1] = { id, r.lease, t.payload, r.attempts, t.deadline, now + lease_ms }
end
return finish(reply)
