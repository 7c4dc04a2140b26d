-- promote: moves what is due by the clock: delayed tasks, leases that ran out, TTLs, lanes' rates.

-- The earliest thing that will happen by itself in this shard.
local function next_event()
  local at, head, soonest = delayed_head() or NEVER, nil, lease_doubt() and now + 200 or 0
  for holder in string.gmatch(S.holders, '%S+') do
    head = redis.call('ZRANGE', key('leased:' .. holder), 0, 0, 'WITHSCORES')
    if head[2] then
      at = math.min(at, math.max(soonest, tonumber(head[2]) + S.lag))
    elseif holder ~= CALLER then
      set('holders', without(S.holders, holder))
    end
  end
  if S.ttls == 1 then
    head = redis.call('ZRANGE', key('expiring'), 0, 0, 'WITHSCORES')
    if head[2] then
      at = math.min(at, tonumber(head[2]))
    else
      set('ttls', 0)
    end
  end
  if S.slots == 1 then
    head = redis.call('ZRANGE', key('slots'), 0, 0, 'WITHSCORES')
    if head[2] then
      at = math.min(at, tonumber(head[2]))
    else
      set('slots', 0)
    end
  end
  if S.paused > now then at = math.min(at, S.paused) end
  return at
end

local function promote_due(most)
  local ids = delayed_due(most)
  if #ids == 0 then return 0 end
  local bodies = records_get(ids)
  local by = {}
  for i = 1, #ids do
    -- No table for each: of most only two fields count.
    local readable, priority, _, deadline, _, _, _, _, _, _, lane = pcall(said, bodies[i])
    if not bodies[i] then
      count('strays')
    elseif not readable then
      set_aside(ids[i])
    elseif lane then
      laned().enter(ids[i], decode(bodies[i]))
    else
      local list = by[priority] or {}
      by[priority] = list
      list[#list + 1], list[#list + 2] = deadline, ids[i]
    end
  end
  for priority, list in pairs(by) do
    redis.call('ZADD', key('ready:' .. priority), unpack(list))
    use_priority(priority)
    woke = true
  end
  return #ids
end

-- Lanes whose rate lets them go on, and idle ones to forget: settle() does the rest. Those whose
-- time lies further off than any rate puts it are from before the clock was stepped back, or the
-- rate raised. How many; whether there are more of the latter.
local function open_lanes(most)
  if S.slots ~= 1 then return 0, false end
  local slots = key('slots')
  local names = redis.call('ZRANGEBYSCORE', slots, '-inf', text(now), 'LIMIT', 0, most)
  -- See lane.lua.
  local room, full_ms = most - #names, S.lane_rate > 0 and S.lane_burst * 1000000 / S.lane_rate or 0
  local latest = now + math.ceil(full_ms) + 1000
  local strange = room > 0
      and redis.call('ZRANGEBYSCORE', slots, '(' .. text(latest), '+inf', 'LIMIT', 0, room)
    or {}
  for i = 1, #strange do
    names[#names + 1] = strange[i]
  end
  if #names == 0 then return 0, false end
  redis.call('ZREM', slots, unpack(names))
  for i = 1, #names do
    laned().get(names[i])
  end
  return #names, #strange > 0 and #strange == room
end

local function bury_expired(most)
  if S.ttls == 0 then return 0 end
  local ids = redis.call('ZRANGEBYSCORE', key('expiring'), '-inf', text(now), 'LIMIT', 0, most)
  for i = 1, #ids do
    local t, r, unreadable = both_get(ids[i])
    local where = t and locate(ids[i], t, r)
    if unreadable then
      set_aside(ids[i])
    elseif where == 'ready' or where == 'delayed' or where == 'waiting' then
      index_remove(ids[i], t, r, where)
      outlived(ids[i], r)
    else
      redis.call('ZREM', key('expiring'), ids[i])
      count('strays')
    end
  end
  return #ids
end

-- Move what is due to ready and end what leases have run out, at most `most` in all; then set the
-- alarm anew: in the past, when there is more. What is due has the rest, and at least an eighth: so
-- much that a crowd of one kind holds up the others for a few calls only.
local function promote(most)
  local left, more = most, nil
  local function half() return math.ceil(left / 2) end
  left = left - bury_expired(half())
  left = left - end_run_out(half())
  local opened
  opened, more = open_lanes(half())
  left = left - opened
  left = left - promote_due(left)
  local moved = most - left
  if #aside > 0 then bury_them() end
  if lanes then lanes.settle() end
  local at = next_event()
  if more then at = now end
  if at ~= S.alarm then set('alarm', at) end
  return moved
end
