-- lane: tasks with a key, of which few run at a time, no faster than their rate, in turn with those
-- of other keys.
local function use_priority(priority)
  local name = tostring(priority)
  if not has(S.pris, name) then
    if S.pris == '' then return set('pris', name) end
    local all = { priority }
    for word in string.gmatch(S.pris, '%S+') do
      all[#all + 1] = tonumber(word)
    end
    table.sort(all)
    set('pris', table.concat(all, ' '))
  end
end

-- A lane's next task comes up to ready, or its head goes down again. Within a priority, heads past
-- their deadline stand by the moment at which their lanes queued up, so that lanes take turns;
-- those with a deadline to come stand by it, as every task does.
local function lane_settle(rules, lane)
  lane.touched = false
  local waiting, at, up = key('waiting'), #lane.prefix + 1, false
  local first = redis.call(
    'ZRANGEBYLEX',
    waiting,
    '[' .. lane.prefix,
    '(' .. lane.prefix .. '\100',
    'LIMIT',
    0,
    1
  )[1]
  local free_at = (first or lane.head ~= '') and rules.free_at(lane) or now
  local function goes_before(a, b)
    local p, d, o = unpack_struct('>BI6I6', a, at)
    local q, e, n = unpack_struct('>BI6I6', b, at)
    return p < q or p == q and (d < e or d == e and o < n)
  end
  if lane.head ~= '' and (free_at > now or first and goes_before(first, lane.head)) then
    redis.call('ZREM', key('ready:' .. string.byte(lane.head, at)), string.sub(lane.head, at + 13))
    redis.call('ZADD', waiting, 0, lane.head)
    first, lane.head = first or lane.head, ''
  end
  if first and lane.head == '' and free_at <= now then
    local priority, deadline = unpack_struct('>BI6', first, at)
    -- Microseconds, half a millisecond back: no two are equal, and it is past at once.
    if lane.turn == 0 then
      lane.turn = math.max(now * 1000 - 500, (S.turn or 0) + 1)
      set('turn', lane.turn)
    end
    redis.call('ZREM', waiting, first)
    local score = deadline > now and text(deadline) or string.format('%.3f', lane.turn / 1000)
    redis.call('ZADD', key('ready:' .. priority), score, string.sub(first, at + 13))
    use_priority(priority)
    lane.head, woke, up = first, true, true
  end
  local kept = lane.head ~= '' or lane.tat > now
  -- Whole seconds: idle lanes are forgotten in crowds.
  if lane.head == '' and (kept or first and free_at < NEVER) then
    local slot = first and free_at < NEVER and free_at or math.ceil(lane.tat / 1000) * 1000
    redis.call('ZADD', key('slots'), text(slot), lane.name)
    if S.slots ~= 1 then set('slots', 1) end
    note(slot)
  end
  local raw = kept and pack('>dd', lane.turn, lane.tat) .. lane.head or nil
  if raw ~= lane.raw then
    if kept then
      redis.call('HSET', key('lanes'), lane.name, raw)
    else
      redis.call('HDEL', key('lanes'), lane.name)
    end
    lane.raw = raw
  end
  if
    not kept
    and not first
    and redis.call('EXISTS', key('lanes'), waiting, key('running')) == 0
  then
    set('lanes', 0)
  end
  return up
end

local function prefix_of(name) return string.char(math.min(#name, 255)) .. name end

-- What a lane's record says: turn, next time by its rate, head; nothing where there is none, or one
-- that cannot be read.
local function lane_said(lane)
  if not lane.raw or #lane.raw < 16 then return nil end
  local turn, tat = unpack_struct('>dd', lane.raw)
  local head, behind = string.sub(lane.raw, 17), #lane.prefix + 14
  -- NaN is neither.
  if
    turn < 0
    or turn % 1 ~= 0
    or turn > 9007199254740991
    or not (tat >= 0 and tat < 9007199254740991)
  then
    return nil
  end
  if head ~= '' and (#head < behind or string.sub(head, 1, #lane.prefix) ~= lane.prefix) then
    return nil
  end
  return turn, tat, head
end

-- The entry of a task in waiting.
local function lane_entry(id, t)
  return prefix_of(t.lane) .. pack('>BI6I6', t.priority, t.deadline, t.order) .. id
end

-- The lane and the id of an entry of waiting or running; behind the lane's name stand `fixed`
-- bytes.
local function lane_parse(entry, fixed)
  local behind = (string.byte(entry) or 0) + 2
  return string.sub(entry, 2, behind - 1), string.sub(entry, behind + fixed)
end

local function lane_open(name)
  local lane = {
    name = name,
    prefix = prefix_of(name),
    raw = redis.call('HGET', key('lanes'), name) or nil,
    turn = 0,
    tat = 0,
    head = '',
  }
  local turn, tat, head = lane_said(lane)
  if turn then
    lane.turn, lane.tat, lane.head = turn, tat, head
  elseif lane.raw then
    -- Whichever task is its head still, a take finds that it is not (see lane_blocked).
    lane.raw = false
    count('unreadable')
  end
  return lane
end

-- Lanes (docs/decisions/0009-lanes.md). Built at the first task with a lane that a script meets, so
-- that others pay nothing for it.
--   waiting  zset, scores 0: `<length><lane><priority 1><deadline 6><order 6><id>`: a lane is a
--            range of it, its next task first
--   running  zset, scores 0: `<length><lane><id>` of every leased task of a lane
--   lanes    hash lane → turn (µs) 8, next time by its rate (ms) 8, then the entry of its head, the
--            one task of it that is ready
--   slots    zset lane by the time at which its rate lets it go on, or it may be forgotten
-- A lane with something waiting has a head in ready, or as many leased as it may, or stands in
-- slots.
local function lane_rules()
  local rules, book, touched = { entry = lane_entry, parse = lane_parse }, {}, {}
  local limit, pace_ms = S.lane_limit, 0
  if S.lane_rate > 0 then pace_ms = 1000000 / S.lane_rate end
  local burst_ms = S.lane_burst * pace_ms

  -- A lane that something happens to; settle() looks after it before the script ends.
  function rules.get(name)
    local lane = book[name]
    if not lane then
      lane = lane_open(name)
      book[name] = lane
      lane.tat = math.min(lane.tat, now + burst_ms) -- the rate may have changed since
    end
    if not lane.touched then
      touched[#touched + 1], lane.touched = lane, true
      -- Also where it was the last one to go, earlier in this call.
      if S.lanes ~= 1 then set('lanes', 1) end
    end
    return lane
  end

  function rules.enter(id, t)
    rules.get(t.lane)
    redis.call('ZADD', key('waiting'), 0, rules.entry(id, t))
  end

  -- A task goes out of its lane; its entries in ready and leased are the caller's.
  function rules.leave(id, t, where)
    local lane = rules.get(t.lane)
    if where == 'waiting' then
      redis.call('ZREM', key('waiting'), rules.entry(id, t))
    elseif where == 'leased' then
      redis.call('ZREM', key('running'), lane.prefix .. id)
    elseif where == 'ready' and lane.head == rules.entry(id, t) then
      lane.head = ''
    end
  end

  -- A task that has left its lane is leased; `tat` is the lane's bucket (see token_bucket.lua).
  function rules.run(id, t)
    local lane = rules.get(t.lane)
    redis.call('ZADD', key('running'), 0, lane.prefix .. id)
    lane.tat, lane.turn = bucket_spent(lane.tat, now, pace_ms), 0
  end

  -- From when on the lane may have another task leased: now, later, or NEVER as long as none of its
  -- leases ends.
  function rules.free_at(lane)
    local index, from = key('running'), lane.prefix
    if limit > 0 then
      local leased = redis.call('ZLEXCOUNT', index, '[' .. from, '(' .. from .. '\255')
      if leased >= limit then return NEVER end
    end
    local _, _, opens_at = bucket_grant(lane.tat, now, pace_ms, burst_ms, 0, 0)
    return math.max(now, math.ceil(opens_at - 0.001))
  end

  -- Puts each lane that something happened to in order. Whether a task came up to ready.
  function rules.settle()
    local up = false
    for i = 1, #touched do
      up = lane_settle(rules, touched[i]) or up
    end
    touched = {}
    return up
  end
  return rules
end

local function laned()
  lanes = lanes or lane_rules()
  return lanes
end

-- Whether a task that is ready may not be leased: its lane's record was lost, another is its head,
-- and they may not run both.
local function lane_blocked(id, t)
  local lane = laned().get(t.lane)
  lane.doubtful = lane.doubtful or lane.head ~= laned().entry(id, t)
  return lane.doubtful and laned().free_at(lane) > now
end
