-- check: look for what cannot be, in one piece of the shard; with `repair` put it right.
-- KEYS    1 the shard  2 the view
-- ARGV    3 part (record, tasks, tries, waits, or the name of an index)  4 cursor ("0": from the start)  5 entries at most, about  6 repair 0|1
-- RETURNS {cursor ("0": this part is done), entries seen, problems {kind, id, detail, repaired 0|1}, names of the indexes (of `record` only)}
-- A task that lies nowhere, or in two places, goes back to ready (or delayed, when it is not due) and loses its lease; an entry without a task is dropped.
open()
local part, cursor, most, repair = ARGV[3], int(4, 'cursor', 0, 2 ^ 63), int(5, 'entries', 1, 1000), ARGV[6] == '1'
local found, names, seen = {}, {}, 0
local function problem(kind, id, detail, mend)
  if repair and mend then
    redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
    mend()
    count('mended')
  end
  found[#found + 1] = {kind, id, detail, repair and mend and 1 or 0}
end
local function score(index, id) return redis.call('ZSCORE', key(index), id) end

local function check_record()
  names = {'delayed', 'buried', 'expiring', 'held'}
  for priority = 0, 99 do
    local name = 'ready:' .. priority
    if redis.call('EXISTS', key(name)) == 1 then
      names[#names + 1] = name
      if not has(S.pris, tostring(priority)) then
        problem('priority not in the record', '', name, function() use_priority(priority) woke = true end)
      end
    end
  end
  for _, name in ipairs(indexes_of('leased')) do names[#names + 1] = name end
  local waits = redis.call('HLEN', key('waits'))
  if waits ~= S.awaited then problem('count of waits', '', text(S.awaited) .. ' instead of ' .. text(waits), function() set('awaited', waits) end) end
  if S.ttls == 0 and redis.call('EXISTS', key('expiring')) == 1 then
    problem('TTLs not in the record', '', 'expiring', function() set('ttls', 1) end)
    S.ttls = 1
  end
  local at = next_event()
  if at < S.alarm then problem('late alarm', '', text(S.alarm) .. ' instead of ' .. text(at), function() note(at) end) end
end

local function places_of(id, r)
  local places, leased = {}, indexes_of('leased')
  local index = r and index_of(r.holder) or ''
  if index ~= '' and not has(S.holders, index) then leased[#leased + 1] = 'leased:' .. index end
  for _, list in ipairs({{'delayed', 'buried'}, indexes_of('ready'), leased}) do
    for _, name in ipairs(list) do
      if score(name, id) then places[#places + 1] = name end
    end
  end
  return places
end

local function back_to_ready(id, t, r, places)
  return function()
    for _, name in ipairs(places) do redis.call('ZREM', key(name), id) end
    if r and r.holder ~= '' then unlease(id, r) end
    redis.call('ZREM', key('expiring'), id)
    if r and r.attempts == 0 and r.losses == 0 then tries_drop(id)
    elseif r then
      r.holder, r.sticky, r.lease_ms = '', false, 0
      tries_put(id, r)
    end
    index_add(id, t)
  end
end

local function check_ttl(id, t, place)
  local wanted = (place == 'delayed' or string.sub(place, 1, 6) == 'ready:') and t.expires or 0
  if tonumber(score('expiring', id) or 0) ~= wanted then
    problem('TTL index', id, place, function()
      redis.call('ZREM', key('expiring'), id)
      if wanted > 0 then may_expire(id, t) end
    end)
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
    problem('lease that its session does not know', id, r.holder, function() redis.call('ZADD', key('held'), '0', entry) end)
  end
end

local function check_task(id, raw)
  local readable, t = pcall(decode, raw)
  if not readable or t.priority > 99 then return problem('unreadable task', id, '') end
  local tried = redis.call('HGET', key('tries'), id)
  local known, r = true, nil
  if tried then known, r = pcall(tries_decode, tried) end
  if not known then
    r = nil
    problem('unreadable record of tries', id, '', function() tries_drop(id) end)
  end
  local places = places_of(id, r)
  local place, held = places[1], r ~= nil and r.holder ~= ''
  local right = place == 'delayed' or place == 'buried' or place == 'ready:' .. t.priority
  if held then right = place == 'leased:' .. index_of(r.holder) end
  if #places == 0 then problem('task without an index entry', id, held and 'leased' or '', back_to_ready(id, t, r, places))
  elseif #places > 1 then problem('task in two places', id, table.concat(places, ' '), back_to_ready(id, t, r, places))
  elseif not right then problem('task in the wrong place', id, place, back_to_ready(id, t, r, places))
  else
    if held then check_holder(id, r, place) end
    if place == 'buried' and not r then problem('buried without a record', id, '', function() tries_put(id, fresh_tries()) end) end
    check_ttl(id, t, place)
  end
end

local function check_held(entry)
  local id = string.sub(entry, 33)
  local r = tries_get(id)
  if not r or r.holder ~= '~' .. string.sub(entry, 1, 32) then
    problem('lease that ended and its session still knows', id, entry, function() redis.call('ZREM', key('held'), entry) end)
  end
end

local function check_entries(command, name, kind, drop)
  local page = redis.call(command, key(name), ARGV[4], 'COUNT', most)
  for i = 1, #page[2], 2 do
    local id = page[2][i]
    seen = seen + 1
    if name == 'tasks' then check_task(id, page[2][i + 1])
    elseif name == 'held' then check_held(id)
    elseif redis.call('HEXISTS', key('tasks'), id) == 0 then problem(kind, id, name, function() drop(id) end) end
  end
  return page[1]
end

local at = '0'
if part == 'record' then check_record()
elseif part == 'tasks' then at = check_entries('HSCAN', 'tasks')
elseif part == 'tries' then at = check_entries('HSCAN', 'tries', 'tries without a task', tries_drop)
elseif part == 'waits' then at = check_entries('HSCAN', 'waits', 'wait without a task', over)
elseif part == 'delayed' or part == 'buried' or part == 'expiring' or part == 'held' or part == 'leased:~' or string.match(part, '^ready:%d%d?$') or string.match(part, '^leased:.+%.%d+$') then
  at = check_entries('ZSCAN', part, 'index entry without a task', function(id) redis.call('ZREM', key(part), id) end)
else refuse('BADARG there is no part ' .. part) end
if not repair then changed, counted = {}, false end
return finish({at, seen, found, names})
