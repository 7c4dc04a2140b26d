-- check: looks for contradictions in one piece of the shard, and repairs them with `repair`.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 part (tasks, accounts, account_*, tries, waits, lanes, or the name of an index)
--         4 cursor ("0": from the start)
--         5 entries at most, about
--         6 repair 0|1
-- RETURNS {cursor ("0": this part is done), entries seen, problems {kind, id, detail, repaired
--         0|1}}
-- What the shard's record says is looked at before, by check_record. A task that lies nowhere, or
-- in two places, goes back to ready (or delayed, when it is not due) and loses its lease; an entry
-- without a task is dropped.
open()
local part, cursor, most, repair =
  ARGV[3], int(4, 'cursor', 0, 2 ^ 63), int(5, 'entries', 1, 1000), ARGV[6] == '1'
local found, seen = {}, 0
local function problem(kind, id, detail, mend)
  if repair and mend then
    redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
    mend()
    count('mended')
  end
  found[#found + 1] = { kind, id, detail, repair and mend and 1 or 0 }
end
local function score(index, id) return redis.call('ZSCORE', key(index), id) end

-- The task of an id; nil when there is none, or one that nobody can read: then the second result is
-- true.
local function task_of(id) return task_get(id) end
local function tries_of(id) return (tries_get(id)) end

local function places_of(id, t, r)
  local places, leased = {}, indexes_of('leased')
  local index = r and index_of(r.holder) or ''
  if index ~= '' and not has(S.holders, index) then leased[#leased + 1] = 'leased:' .. index end
  if delayed_score(id, delayed_at(t, r)) then places[1] = 'delayed' end
  for _, list in ipairs({ { 'buried' }, indexes_of('ready'), leased }) do
    for _, name in ipairs(list) do
      if score(name, id) then places[#places + 1] = name end
    end
  end
  if t.lane and score('waiting', laned().entry(id, t)) then places[#places + 1] = 'waiting' end
  return places
end

local function back_to_ready(id, t, r, places)
  return function()
    for _, name in ipairs(places) do
      if name == 'delayed' then
        delayed_remove(id, delayed_at(t, r))
      else
        redis.call('ZREM', key(name), id)
      end
    end
    if r and r.holder ~= '' then unlease(id, r) end
    if t.lane then
      laned().leave(id, t, 'waiting')
      laned().leave(id, t, 'leased')
      local lane = laned().get(t.lane)
      if lane.head == laned().entry(id, t) then lane.head = '' end
    end
    redis.call('ZREM', key('expiring'), id)
    if r and r.attempts == 0 and r.losses == 0 then
      tries_drop(id)
    elseif r then
      r.holder, r.sticky, r.lease_ms = '', false, 0
      tries_put(id, r)
    end
    index_add(id, t)
  end
end

local function check_ttl(id, t, place)
  local wanted = (place == 'delayed' or place == 'waiting' or string.sub(place, 1, 6) == 'ready:')
      and t.expires
    or 0
  if tonumber(score('expiring', id) or 0) ~= wanted then
    problem('TTL index', id, place, function()
      redis.call('ZREM', key('expiring'), id)
      if wanted > 0 then may_expire(id, t) end
    end)
  end
end

-- What a lane must know of its task that is ready or leased.
local function check_lane(id, t, r, place, held)
  if held and not score('running', prefix_of(t.lane) .. id) then
    problem('lease that its lane does not count', id, t.lane, function()
      laned().get(t.lane)
      redis.call('ZADD', key('running'), 0, prefix_of(t.lane) .. id)
    end)
  elseif string.sub(place, 1, 6) == 'ready:' then
    local raw = redis.call('HGET', key('lanes'), t.lane) or ''
    if string.sub(raw, 17) ~= laned().entry(id, t) then
      problem(
        'ready without being the head of its lane',
        id,
        t.lane,
        back_to_ready(id, t, r, { place })
      )
    end
  end
end

-- Entries of lanes without their tasks, and lanes that nothing would wake.
local function check_waiting(entry)
  local name, id = laned().parse(entry, 13)
  local t, unreadable = task_of(id)
  if unreadable then return end
  if not t or t.lane ~= name or laned().entry(id, t) ~= entry then
    return problem('index entry without a task', id, 'waiting', function()
      redis.call('ZREM', key('waiting'), entry)
      laned().get(name)
    end)
  end
  local lane = { prefix = prefix_of(name), tat = 0, raw = redis.call('HGET', key('lanes'), name) }
  local _, _, head = lane_said(lane)
  if (head or '') == '' and not score('slots', name) and laned().free_at(lane) <= now then
    problem('lane that waits for nothing', id, name, function() laned().get(name) end)
  end
end

local function check_running(entry)
  local name, id = laned().parse(entry, 0)
  local t, unreadable = task_of(id)
  local r = tries_of(id)
  if unreadable then return end
  if not t or t.lane ~= name or not r or r.holder == '' then
    problem('lease that ended and its lane still counts', id, name, function()
      redis.call('ZREM', key('running'), entry)
      laned().get(name)
    end)
  end
end

local function check_head(name, raw)
  local turn, _, head = lane_said({ prefix = prefix_of(name), raw = raw })
  if not turn then
    return problem('unreadable lane', '', name, function() laned().get(name) end)
  end
  local id = head ~= '' and select(2, laned().parse(head, 13))
  if head == '' and not score('slots', name) then
    problem('lane that is never forgotten', '', name, function() laned().get(name) end)
  elseif id and not score('ready:' .. string.byte(head, #name + 2), id) then
    problem('lane whose head is not ready', id, name, function() laned().get(name).head = '' end)
  end
end

-- A lease of a session's stands in `held`, too: by that the session's end finds it.
local function check_holder(id, r, place)
  local index = index_of(r.holder)
  if not has(S.holders, index) then
    problem('holder not in the record', id, r.holder, function()
      set('holders', with(S.holders, index))
      note(tonumber(score(place, id)))
    end)
  end
  local entry = string.sub(r.holder, 2) .. id
  if index ~= r.holder and not score('held', entry) then
    problem(
      'lease that its session does not know',
      id,
      r.holder,
      function() redis.call('ZADD', key('held'), '0', entry) end
    )
  end
end

local function check_task(id, raw)
  local t = decode(raw)
  local r, unread = tries_get(id)
  if not t then
    if r and r.reason == 'unreadable' and score('buried', id) then
      return problem('unreadable task, set aside', id, 'buried')
    end
    return problem('unreadable task', id, '', function() set_aside(id) end)
  end
  if unread then problem('unreadable record of tries', id, '', function() tries_drop(id) end) end
  local places = places_of(id, t, r)
  local place, held = places[1], r ~= nil and r.holder ~= ''
  local right = place == 'delayed'
    or place == 'buried'
    or place == 'waiting'
    or place == 'ready:' .. t.priority
  if held then right = place == 'leased:' .. index_of(r.holder) end
  if #places == 0 then
    problem(
      'task without an index entry',
      id,
      held and 'leased' or '',
      back_to_ready(id, t, r, places)
    )
  elseif #places > 1 then
    problem('task in two places', id, table.concat(places, ' '), back_to_ready(id, t, r, places))
  elseif not right then
    problem('task in the wrong place', id, place, back_to_ready(id, t, r, places))
  else
    if held then check_holder(id, r, place) end
    if place == 'buried' and not r then
      problem('buried without a record', id, '', function() tries_put(id, fresh_tries()) end)
    end
    check_ttl(id, t, place)
    if t.lane then check_lane(id, t, r, place, held) end
  end
end

-- A record has to lie where it is looked for, and a dead account has none.
local function check_record_of(name, id, raw)
  if name ~= bucket_of(id) then
    problem('record where nobody looks for it', id, name, function()
      redis.call('HDEL', name, id)
      if redis.call('HSETNX', bucket_of(id), id, raw) == 0 then set('stored', S.stored - 1) end
    end)
    if not repair then return end
  elseif S.accounts == 1 and score('account_dead', id) then
    return problem('task of a dead account', id, '', function()
      displace(id)
      records_drop({ id })
    end)
  end
  check_task(id, raw)
end

local function check_held(entry)
  local id = string.sub(entry, 33)
  local r = tries_of(id)
  if not r or r.holder ~= '~' .. string.sub(entry, 1, 32) then
    problem(
      'lease that ended and its session still knows',
      id,
      entry,
      function() redis.call('ZREM', key('held'), entry) end
    )
  end
end

-- An entry of the delayed index must stand where its task's records say.
local function check_delayed(name, id, due)
  local t, unreadable = task_of(id)
  if unreadable then return end
  local r = tries_of(id)
  if not t then
    return problem(
      'index entry without a task',
      id,
      'delayed',
      function() delayed_drop(id, name) end
    )
  end
  due = due + base_of(name)
  if due == delayed_at(t, r) and piece_of(due) == name then return end
  problem('delayed at another time than its record says', id, text(due), function()
    delayed_drop(id, name)
    if locate(id, t, r) == 'lost' then index_add(id, t) end
  end)
end

-- Many keys make one part; a cursor is the number of the key and the place in it. name_of(i): the
-- key, nil behind the last.
local PLACES, KEYS_MAX = 4294967296, 1000
local function check_keys(command, name_of, look)
  local at = int(4, 'cursor', 0, 2 ^ 53)
  local i, inner = math.floor(at / PLACES), at % PLACES
  local last = i + KEYS_MAX
  repeat
    local name = name_of(i)
    if not name then return '0' end
    local page = redis.call(command, name, text(inner), 'COUNT', most)
    for j = 1, #page[2], 2 do
      seen = seen + 1
      look(name, page[2][j], page[2][j + 1])
    end
    inner = tonumber(page[1])
    -- A piece, and the next has its number.
    local gone = repair and part == 'delayed' and i > 0 and redis.call('EXISTS', name) == 0
    if inner == 0 and not gone then i = i + 1 end
  until seen >= most or i >= last
  return text(i * PLACES + inner)
end

local function check_entries(command, name, kind, drop)
  local page = redis.call(command, key(name), ARGV[4], 'COUNT', most)
  for i = 1, #page[2], 2 do
    local id = page[2][i]
    seen = seen + 1
    if name == 'waiting' then
      check_waiting(id)
    elseif name == 'running' then
      check_running(id)
    elseif name == 'lanes' then
      check_head(id, page[2][i + 1])
    elseif name == 'held' then
      check_held(id)
    elseif not stored(id) then
      problem(kind, id, name, function() drop(id) end)
    end
  end
  return page[1]
end

-- Tasks without records of their own.
local function check_accounts()
  local page = redis.call('HSCAN', key('accounts'), ARGV[4], 'COUNT', most)
  for i = 1, #page[2], 2 do
    local id, row = page[2][i], page[2][i + 1]
    local raw = record_get(id, row)
    if raw and raw == derived(row) then
      seen = seen + 1
      check_task(id, raw)
    end
  end
  return page[1]
end

-- What lies beside accounts. A dead account has troubles that say why; one without is tried again.
local function check_beside(scan, drop)
  local page = redis.call(scan, key(part), ARGV[4], 'COUNT', most)
  for i = 1, #page[2], scan == 'SSCAN' and 1 or 2 do
    local account = page[2][i]
    seen = seen + 1
    local kind = redis.call('HEXISTS', key('accounts'), account) == 0 and 'entry without an account'
      or part == 'account_dead'
        and redis.call('HEXISTS', key('account_troubles'), account) == 0
        and 'dead account without a reason'
    if kind then
      problem(kind, account, part, function() redis.call(drop, key(part), account) end)
    end
  end
  return page[1]
end

local beside
for _, one in ipairs(string.sub(part, 1, 8) == 'account_' and account_parts() or {}) do
  if one[1] == part then beside = one end
end
local at = '0'
if beside then
  at = check_beside(beside[2], beside[3])
elseif part == 'tasks' then
  at = check_keys(
    'HSCAN',
    function(i) return i < S.buckets and bucket_key(i) or nil end,
    check_record_of
  )
elseif part == 'delayed' then
  at = check_keys('ZSCAN', function(i)
    if S.cut == 0 then return i == 0 and key('delayed') or nil end
    while true do
      local n = redis.call('ZRANGE', key('pieces'), i, i)[1]
      if not n or n == '0' or redis.call('EXISTS', piece_key(n)) == 1 then
        return n and piece_key(n)
      end
      problem('piece without entries', '', n, function() forget_piece(piece_key(n)) end)
      if not repair then return piece_key(n) end
    end
  end, function(name, id, due) check_delayed(name, id, tonumber(due)) end)
elseif part == 'accounts' then
  at = check_accounts()
elseif part == 'lanes' then
  at = check_entries('HSCAN', 'lanes')
elseif part == 'waiting' or part == 'running' then
  at = check_entries('ZSCAN', part)
elseif part == 'tries' then
  at = check_entries('HSCAN', 'tries', 'tries without a task', tries_drop)
elseif part == 'tally' then
  at = check_entries(
    'HSCAN',
    'tally',
    'tally without a task',
    function(id) redis.call('HDEL', key('tally'), id) end
  )
elseif part == 'waits' then
  at = check_entries('HSCAN', 'waits', 'wait without a task', over)
elseif
  part == 'buried'
  or part == 'expiring'
  or part == 'held'
  or part == 'leased:~'
  or string.match(part, '^ready:%d%d?$')
  or string.match(part, '^leased:.+%.%d+$')
then
  at = check_entries(
    'ZSCAN',
    part,
    'index entry without a task',
    function(id) redis.call('ZREM', key(part), id) end
  )
else
  refuse('BADARG there is no part ' .. part)
end
if not repair then discard() end
return finish({ at, seen, found })
