-- take: leases ready tasks in the queue's order, after moving what is due and ending leases that
-- ran out.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks moved at most before taking
--         4… per take: count, lease ms (0: the task's, else the queue's), wait (0: not, 1: this
--           node is told when something is ready here after nothing came, 2: also after fewer came,
--           3: whatever came, for others of this node wait; 4: not, and the named task is leased
--           also where it is buried or the queue paused) with the uuid of the session behind it
--           where the leases are a session's, id ("": any)
-- RETURNS per take: a list of {id, lease, payload, attempt, deadline_ms, lease_end_ms,
--         due_ms (0: it was tried before)}, and of a task that was put with one its trace context
--         (25 bytes)
-- Errors  STALE: the caller's boot was declared dead
open()
alive(CALLER)
local most = int(3, 'tasks moved', 1, 1000)
if S.expire_ms > 0 and now - S.used >= 1000 then set('used', now) end
if #ARGV < 7 or #ARGV % 4 ~= 3 then refuse('BADARG a take has four arguments each') end
local wants, total, patient = {}, 0, true
local want -- most say what the one before said
for i = 4, #ARGV, 4 do
  local word = ARGV[i + 2]
  if
    not (
      want
      and ARGV[i] == ARGV[i - 4]
      and ARGV[i + 1] == ARGV[i - 3]
      and word == ARGV[i - 2]
      and ARGV[i + 3] == ARGV[i - 1]
    )
  then
    want = {
      int(i, 'count', 1, 1000),
      int(i + 1, 'lease ms', 0, NEVER),
      string.sub(word, 1, 1),
      ARGV[i + 3],
      CALLER,
    }
    if #word == 33 and string.match(word, '^[0-4]%x+$') then
      want[5] = '~' .. string.sub(word, 2)
    elseif #word > 1 then
      refuse('BADARG the session of a take is no uuid: ' .. word)
    end
  end
  wants[#wants + 1] = want
  if want[3] == '0' or want[3] == '4' then patient = false end
  if want[4] == '' then total = total + want[1] end
end
if total > 4000 then refuse('TOOBIG one script takes at most 4000 tasks') end
if now >= S.alarm then promote(most) end

-- Who goes before the late: the living that are due within `urgent_ms`, and all living ones when
-- there is no time to lose. There is none when, at the shard's pace (tasks a ms, measured while it
-- is taken from), more have to be done by some time than can be done by then, and until then the
-- living never run out: else there is a moment to spare between them, which the late may have now.
-- What is still delayed counts, too. Nobody waits for it longer than 1.73 times as long as tasks
-- have from due to deadline: a living one that is saved so would cost a late one more than that
-- (docs/decisions/0013-urgent.md).
local PACE_MS, PACE_TASKS, PACE_MS_MAX, LOOK_MS, FORESIGHT = 10000, 32, 120000, 1000, 1.73
local function no_time_to_lose(name, living, span, needed)
  local horizon = math.min(FORESIGHT * span, S.urgent_max_ms)
  local coming, after, ready = delayed_within(horizon), '(' .. text(now), 0
  local ahead = math.max(S.urgent_ms, LOOK_MS)
  while true do
    if ready < living then
      ready = redis.call('ZCOUNT', name, after, text(math.floor(now + ahead)))
    end
    local can = S.pace * ahead - needed -- these may be late ones
    if ready + coming(ahead - span) > can then return true end
    if ahead >= horizon or living + coming(ahead) <= can then return false end
    ahead = math.min(horizon, ahead + math.min(ahead / 10, horizon / 24))
  end
end

-- How long tasks have from due to deadline: the middle one of some that are still delayed; there
-- may be none.
local function usual_span(guess)
  local spans = {}
  for i = 1, 5 do
    local id = delayed_next(math.floor(now + guess * i / 3))
    local t = id and task_get(id)
    -- Who is late when it is tried again tells nothing.
    if t and t.deadline > delayed_at(t, (tries_get(id))) then
      spans[#spans + 1] = t.deadline - t.due
    end
  end
  table.sort(spans)
  return spans[math.ceil(#spans / 2)] or guess
end

-- How far ahead is urgent, in the ready tasks of a priority whose first is late. What was found
-- holds for a second.
local function reach(name, needed)
  local passed, taken = now - S.pace_at, S.taken - S.pace_taken
  if passed >= PACE_MS and taken >= PACE_TASKS or passed >= PACE_MS_MAX or passed < 0 then
    -- Else the clock was stepped back.
    if passed >= 0 then set('pace', passed > 2 * PACE_MS_MAX and 0 or taken / passed) end
    set('pace_at', now)
    set('pace_taken', S.taken)
  end
  local looked, found, where = string.match(S.reach, '^(%d+) (%d+) (.*)$')
  local age = now - (tonumber(looked) or 0)
  if where == name and age >= 0 and age < LOOK_MS then return tonumber(found) end
  local last = tonumber(redis.call('ZRANGE', name, -1, -1, 'WITHSCORES')[2])
  if last <= now then return S.urgent_ms end -- all are late
  local living = redis.call('ZCOUNT', name, '(' .. text(now), '+inf')
  local ms = no_time_to_lose(name, living, usual_span(last - now), needed) and S.urgent_max_ms
    or S.urgent_ms
  set('reach', text(now) .. ' ' .. text(ms) .. ' ' .. name)
  return ms
end

-- The bands of one priority, read as far as they are needed. `heads` are its first entries with
-- their scores, one more than `needed` where there are so many: where they are all there is, or all
-- late ones that are needed, the store is not asked again.
local function bands(priority, needed, heads, late, rest)
  local name = key('ready:' .. priority)
  local edge = now
    + (S.urgent_max_ms > S.urgent_ms and late[1] and reach(name, needed) or S.urgent_ms)
  local read, at = { late = late }, { urgent = 0, late = 0, early = 0 }
  if #heads <= 2 * needed then
    read.urgent, read.early = {}, {}
    for i = rest, #heads, 2 do
      local list = tonumber(heads[i + 1]) <= edge and read.urgent or read.early
      list[#list + 1] = heads[i]
    end
  end
  return function(band)
    if not read[band] then
      local from, to = now, text(edge)
      if band == 'early' then
        from, to = edge, '+inf'
      end
      read[band] = redis.call('ZRANGEBYSCORE', name, '(' .. text(from), to, 'LIMIT', 0, needed)
    end
    local id = read[band][at[band] + 1]
    if id then at[band] = at[band] + 1 end
    return id
  end
end

-- Up to `needed` ids of one priority, in order; every late_share-th comes from late, every
-- early_share-th from early. Whether these are all there are comes second: it is seen from the one
-- that is read ahead.
local function choose(priority, needed)
  if S.order == 'edf' then
    local ids = redis.call('ZRANGE', key('ready:' .. priority), 0, needed)
    local all = #ids <= needed
    ids[needed + 1] = nil
    return ids, all
  end
  local heads, late, rest =
    redis.call('ZRANGE', key('ready:' .. priority), 0, needed, 'WITHSCORES'), {}, 1
  while rest < #heads and tonumber(heads[rest + 1]) <= now do
    late[#late + 1] = heads[rest]
    rest = rest + 2
  end
  -- There are no others.
  if #heads <= 2 * needed and rest > #heads and S.urgent_max_ms <= S.urgent_ms then
    return late, true
  end
  local early_share, late_share = S.early_share, S.late_share
  local pull, ids = bands(priority, needed, heads, late, rest), {}
  while #ids < needed do
    local turn, id = S.taken + #ids + 1, nil
    if early_share > 0 and turn % early_share == early_share - 1 then
      id = pull('early')
    elseif late_share > 0 and turn % late_share == 0 then
      id = pull('late')
    end
    id = id or pull('urgent') or pull('late') or pull('early')
    if not id then break end
    ids[#ids + 1] = id
  end
  return ids, #heads <= 2 * needed
end

-- A reply has so many bytes of records, and the task with which it goes past them: the store, the
-- node and the consumer all hold it. Each take gets one task all the same.
local REPLY_BYTES = 16777216
local picked, raws, tried = {}, {}, {} -- ids, and their records
local room, least, cut = REPLY_BYTES, 0, false
for i = 1, #wants do
  if wants[i][4] == '' then least = least + 1 end
end
-- Read the records of `ids`, which are the next, until the reply is long enough; how many it then
-- has room for.
local function fetch(ids)
  local known, from, some = #picked, 1, 16
  while from <= #ids do
    local to = math.min(from + some - 1, #ids)
    local part = to - from + 1 < #ids and { unpack(ids, from, to) } or ids
    local a, b = records_get(part), redis.call('HMGET', key('tries'), unpack(part))
    for i = 1, #part do
      local n = known + from + i - 1
      raws[n], tried[n] = a[i], b[i]
      room = room - #(a[i] or '')
      if room <= 0 and n >= least then
        cut = true
        return from + i - 1
      end
    end
    from, some = to + 1, math.min(2 * some, 1000)
  end
  return #ids
end

-- Of what was picked behind `from`, each task of a lane runs in it now. Whether another of a lane
-- came up to ready for it.
local settled = S.lanes == 1
  and function(from)
    for i = from + 1, #picked do
      local t = raws[i] and decode(raws[i])
      if t and t.lane and lane_blocked(picked[i], t) then
        laned().enter(picked[i], t)
        raws[i] = nil
      elseif t and t.lane then
        laned().leave(picked[i], t, 'ready')
        if t.expires == 0 or t.expires > now then laned().run(picked[i], t) end
      end
    end
    return lanes and lanes.settle()
  end

-- Other nodes wait here, too. Takes that wait and come together with a put would have all that is
-- put on their node: each eighth time they leave it, and whoever of all nodes comes first has it;
-- this node is told as the others are.
local FAIR_TURN = 8
local function yields()
  if not (joined and woke and patient) or S.waiting == '' or S.waiting == CALLER then
    return false
  end
  set('fair', S.fair % FAIR_TURN + 1)
  for_all = S.fair == FAIR_TURN
  return for_all
end

local paused = S.paused > now
local searching = not paused and total > 0 and not yields()
-- Tasks may be left; nobody has looked who yields, or wants named ones alone.
local more = not paused and not searching
while searching do
  searching, more = false, false
  for word in string.gmatch(S.pris, '%S+') do
    local needed, known = total - #picked, #picked
    if needed == 0 then
      more = true
      break
    end
    local ids, all = choose(word, needed)
    local fit = fetch(ids)
    if not all or fit < #ids then more = true end
    if #ids < needed and fit == #ids then set('pris', without(S.pris, word)) end
    if fit > 0 then
      redis.call('ZREM', key('ready:' .. word), unpack(ids, 1, fit))
      set('taken', S.taken + fit)
    end
    for i = 1, fit do
      picked[#picked + 1] = ids[i]
    end
    if cut then total = #picked end
    -- A lane's next task may have the highest priority of all.
    if settled and #ids > 0 and settled(known) then
      searching = true
      break
    end
  end
  if not more then woke = false end -- what became ready in this call is taken: nobody need be told
end

local drained = not more -- else more may be ready, also where some of these come to nothing
local clock = lease_clock()
-- Score, id …: of the caller's, of sessions'; their entries in `held`.
local leased, shared, kept = {}, {}, {}
local records = {} -- id, tries …
local untried = fresh_tries() -- of every task that was never taken
local function lease(id, raw, tried, lease_ms, holder)
  local readable, _, due, deadline, own_ms, _, _, own, expires, payload, _, _, trace =
    pcall(said, raw)
  local r = not tried and untried or tries_decode(tried)
  if not readable or not r then return set_aside(id) end
  if expires > 0 then
    redis.call('ZREM', key('expiring'), id)
    -- More than one script buries have outlived theirs.
    if expires <= now then return outlived(id, tried and r) end
  end
  if lease_ms == 0 then lease_ms = own_ms > 0 and own_ms or S.lease_ms end
  r.lease, r.attempts, r.sticky, r.own, r.lease_ms, r.holder =
    new_lease(), tried and math.min(r.attempts + 1, 65535) or 1, false, own, lease_ms, holder
  records[#records + 1], records[#records + 2] = id, tries_encode(r)
  tally(id, 'take')
  local list = leased
  if holder ~= CALLER then
    list = shared
    kept[#kept + 1], kept[#kept + 2] = '0', string.sub(holder, 2) .. id
  end
  list[#list + 1], list[#list + 2] = clock + lease_ms, id
  note(now + lease_ms)
  local waited_since = tried and 0 or due
  return { id, r.lease, payload, r.attempts, deadline, now + lease_ms, waited_since, trace }
end

-- One named task, wherever it waits: ready or delayed, or behind others in its lane if that may
-- run.
local function lease_named(id, lease_ms, holder, anyhow)
  local raw = record_get(id)
  if not raw or paused and not anyhow then return nil end
  local t, tried = decode(raw), redis.call('HGET', key('tries'), id)
  local r = tried and tries_decode(tried)
  if not t or tried and not r then
    if not (r and r.holder ~= '' or lease_end_of(id)) then set_aside(id) end
    return nil
  end
  local where = locate(id, t, r)
  local waits = where == 'ready' or where == 'delayed' or where == 'waiting'
  if not waits and not (anyhow and where == 'buried') then return nil end
  if
    t.lane
    and (where ~= 'ready' or lane_blocked(id, t))
    and laned().free_at(laned().get(t.lane)) > now
  then
    return nil
  end
  index_remove(id, t, r, where)
  if t.lane and (t.expires == 0 or t.expires > now) then laned().run(id, t) end
  return lease(id, raw, tried, lease_ms, holder)
end

local reply, at, hungry = {}, 0, false
for i = 1, #wants do
  local want, got = wants[i], {}
  if want[4] ~= '' then
    got[1] = lease_named(want[4], want[2], want[5], want[3] == '4')
  else
    least = least - 1 -- where the reply was cut, as many are left for those behind
    while #got < want[1] and at < #picked - (cut and least or 0) do
      at = at + 1
      if raws[at] then
        got[#got + 1] = lease(picked[at], raws[at], tried[at], want[2], want[5])
      elseif raws[at] == false then
        count('strays')
      end
    end
  end
  local word = want[3]
  if word == '3' or word == '2' and #got < want[1] or word == '1' and #got == 0 then
    -- Whoever asked takes it for drained where it is not told of more; also where what it would
    -- have got came to nothing.
    if not drained and want[4] == '' then woke = true end
    if drained and want[4] == '' or #got == 0 then hungry = true end
  end
  reply[i] = got
end
if #records > 0 then count('taken', #records / 2) end
for from = 1, #records, 1000 do
  redis.call('HSET', key('tries'), unpack(records, from, math.min(from + 999, #records)))
end
local function stand(index, list, holder)
  for from = 1, #list, 1000 do
    redis.call('ZADD', key(index), unpack(list, from, math.min(from + 999, #list)))
  end
  if #list > 0 and not has(S.holders, holder) then set('holders', with(S.holders, holder)) end
end
stand('leased:' .. CALLER, leased, CALLER)
stand('leased:~', shared, '~')
stand('held', kept, '~')
-- A node that waits here is told once: it takes, and registers again when it finds nothing.
if hungry and not has(S.waiting, CALLER) then set('waiting', with(S.waiting, CALLER)) end
return finish(reply)
