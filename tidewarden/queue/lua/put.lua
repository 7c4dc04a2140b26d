-- put: puts tasks. An id that is there, or was done a moment ago, is kept, refused or replaced.
-- DURABILITY queue
-- GROWS   yes
-- KEYS    1 the shard  2 the view
-- ARGV    3… per task: id, options ("" for all defaults, else nine integers: due mode (0 now, 1
--         delay, 2 at), due ms, deadline mode (0 none, 1 at, 2 within), deadline ms, priority,
--         lease ms, attempts, backoff ms, own 0|1, then the mode keep|fail|replace, then the TTL ms
--         where there is one, and `w` when the caller waits for room, and the trace context
--         behind `#`, 50 hexadecimal digits; the rest behind `@` is the lane), payload
-- RETURNS per task: 1 put, 0 kept (the id was there), or an error word (EXISTS, NOTHELD, FULL: the
--         shard is at its capacity)
-- A task whose options are "" carries an id that we made: it is new, and leaves no tombstone.
open()
effect = 'grows'
local function expiry(due) return S.ttl_ms > 0 and math.min(due + S.ttl_ms, NEVER - 1) or 0 end
local function fresh(payload)
  return {
    priority = 50,
    due = now,
    deadline = now,
    lease_ms = 0,
    attempts_max = 0,
    backoff_ms = 0,
    own = true,
    expires = expiry(now),
    payload = payload,
  }
end
local MODES = { keep = true, fail = true, replace = true }
local plain = fresh('') -- every task without options, but for its payload
local head = encode(plain)
local tasks, modes, seen = {}, {}, {}
for i = 3, #ARGV, 3 do
  local id, options, payload = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local t, mode = plain, 'keep'
  if not payload or id == '' then
    refuse('BADARG a put has three arguments a task: id, options, payload')
  end
  if options ~= '' then
    t = fresh(payload)
    local dm, due, lm, limit, priority, lease_ms, attempts, backoff_ms, own, word, ttl,
      waits, trace, lane =
      string.match(
        options,
        '^([012]) (%d+) ([012]) (%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%l+) ?(%d*)(w?)(#?%x*)(.*)$'
      )
    if
      not dm
      or not MODES[word]
      or trace ~= '' and (#trace ~= 51 or string.byte(trace) ~= 35)
      or lane ~= '' and (string.byte(lane) ~= 64 or #lane == 1)
    then
      refuse('BADARG the options of ' .. id .. ' do not parse: ' .. options)
    end
    if dm == '1' then
      t.due = now + tonumber(due)
    elseif dm == '2' then
      t.due = tonumber(due)
    end
    t.deadline = t.due
    if lm == '1' then
      t.deadline = tonumber(limit)
    elseif lm == '2' then
      t.deadline = now + tonumber(limit)
    end
    t.waits = waits == 'w'
    t.expires = ttl ~= '' and now + tonumber(ttl) or expiry(t.due)
    if #lane > 201 then
      refuse('BADARG the lane of ' .. id .. ' has ' .. #lane - 1 .. ' bytes; allowed are 200')
    end
    if lane ~= '' then t.lane = string.sub(lane, 2) end
    if trace ~= '' then
      t.trace = string.gsub(
        string.sub(trace, 2),
        '%x%x',
        function(pair) return string.char(tonumber(pair, 16)) end
      )
    end
    if t.due >= NEVER or t.deadline >= NEVER or t.expires >= NEVER then
      refuse('BADARG the due time, deadline or TTL of ' .. id .. ' is not below 2^42 ms')
    end
    t.priority, t.lease_ms, t.attempts_max =
      tonumber(priority), tonumber(lease_ms), tonumber(attempts)
    t.backoff_ms, t.own, mode = tonumber(backoff_ms), own == '1', word
    if
      t.priority > 99
      or t.attempts_max > 65535
      or t.lease_ms >= NEVER
      or t.backoff_ms >= NEVER
    then
      refuse(
        'BADARG the priority, lease, attempts or backoff of ' .. id .. ' is too great: ' .. options
      )
    end
  end
  tasks[i / 3], modes[i / 3] = t, mode
end

local reply, bodies, later, ready, expiring, new = {}, {}, {}, {}, {}, 0
local room = S.capacity > 0 and S.capacity - S.stored or NEVER
for i = 1, #tasks do
  local id, t, mode = ARGV[3 * i], tasks[i], modes[i]
  local old = seen[id]
  local done = false
  if not old and not t.own then
    old = stored(id)
    done = not old and mode ~= 'replace' and redis.call('EXISTS', key('done:' .. id)) == 1
  end
  if not old and not done and room <= 0 then
    reply[i] = 'FULL'
    if t.waits and not has(S.roomless, CALLER) then set('roomless', with(S.roomless, CALLER)) end
  elseif not old and not done then
    room = room - 1
    seen[id] = true
    bodies[#bodies + 1], bodies[#bodies + 2] =
      id, t == plain and head .. ARGV[3 * i + 2] or encode(t)
    if t.due > now then
      later[#later + 1], later[#later + 2] = t.due, id
      note(t.due)
      tally(id, 'delayed', math.floor((t.due - now) / 1000))
      tally(id, 'delay', math.floor((t.due - now) / 1000))
    elseif t.lane then
      laned().enter(id, t)
    else
      local list = ready[t.priority]
      if not list then
        list = {}
        ready[t.priority] = list
        use_priority(t.priority)
      end
      list[#list + 1], list[#list + 2] = t.deadline, id
      woke = true
    end
    if t.expires > 0 then
      expiring[#expiring + 1], expiring[#expiring + 2] = t.expires, id
      if S.ttls == 0 then set('ttls', 1) end
      note(t.expires)
    end
    reply[i], new = 1, new + 1
  elseif mode == 'keep' then
    reply[i] = 0
  elseif mode == 'fail' then
    reply[i] = 'EXISTS'
  elseif seen[id] then
    reply[i] = 'EXISTS' -- replaced by its own batch: the first stands
  else
    local r = tries_get(id)
    if r and r.holder ~= '' then
      reply[i] = 'NOTHELD'
    else
      put_task(id, t)
      reply[i] = 1
      count('replaced')
    end
  end
  if #bodies >= 1000 then
    records_put(bodies)
    bodies = {}
  end
end
records_put(bodies)
delayed_put(later)
local function stand(name, list)
  for from = 1, #list, 1000 do
    redis.call('ZADD', key(name), unpack(list, from, math.min(from + 999, #list)))
  end
end
for priority, list in pairs(ready) do
  stand('ready:' .. priority, list)
end
stand('expiring', expiring)
if new > 0 then count('put', new) end
return finish(reply)
