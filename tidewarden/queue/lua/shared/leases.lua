-- leases: how a lease begins, and what becomes of the task when it ends.

local function current_lease(id, lease)
  local r = tries_get(id)
  if r and r.holder ~= '' and r.lease == lease then return r end
  return nil
end

-- How leases on a task ended badly, the oldest first, and whether all of it can be read. An entry:
-- when, how (fail, expired, loss, bury, ttl), attempt, reason.
local function history_of(r)
  local hows, entries, at = { 'fail', 'expired', 'loss', 'bury', 'ttl' }, {}, 1
  while r.history and at <= #r.history do
    if at + 9 > #r.history then return entries, false end
    local ms, how, attempt, size = unpack_struct('>I6BI2B', r.history, at)
    entries[#entries + 1] =
      { ms, hows[how] or '', attempt, string.sub(r.history, at + 10, at + 9 + size), at }
    at = at + 10 + size
  end
  return entries, at <= #(r.history or '') + 1
end

-- One more for the record, the oldest is dropped.
local function remember(r, how, attempt, reason)
  local most, codes = S.history, { fail = 1, expired = 2, loss = 3, bury = 4, ttl = 5 }
  if most == 0 then return end
  local entries, whole = history_of(r)
  if not whole then
    entries, r.history = {}, nil
  end
  local first = entries[#entries - most + 2]
  r.history = (first and string.sub(r.history, first[5]) or most > 1 and r.history or '')
    .. pack('>I6BI2B', now, codes[how], attempt, #reason)
    .. reason
end

local function bury(id, r, reason)
  r.holder, r.sticky, r.reason = '', false, reason
  tries_put(id, r)
  redis.call('ZADD', key('buried'), now, id)
  count('buried')
  tally(id, 'bury')
  over(id)
end

-- Doubling from BACKOFF, or the queue's, to its cap, plus up to a quarter so that a crowd spreads.
local function backoff(t, r)
  local first = t.backoff_ms > 0 and t.backoff_ms or S.backoff_ms
  if first == 0 then return 0 end
  local wait = math.min(first * 2 ^ math.min(r.attempts - 1, 30), S.backoff_cap_ms)
  -- Small factors: doubles are exact to 2^53 only.
  local dice = (r.lease % 1000003 * 7919 + now) % 1000 / 1000
  return math.floor(wait * (1 + dice / 4))
end

-- What was set aside is buried. A record of a task stays as it is, for a newer version or a person;
-- one of tries is written anew.
local function bury_aside()
  for from = 1, #aside, 1000 do
    local ids = { unpack(aside, from, math.min(from + 999, #aside)) }
    uproot(ids)
    for i = 1, #ids do
      if S.locks == 1 then
        unlock(ids[i]) -- nobody can show that it is his
      else
        bury(ids[i], tries_get(ids[i]) or fresh_tries(), 'unreadable')
      end
    end
  end
  aside = {}
end

-- A record that nobody can read harms only itself: before the script ends its task goes from
-- wherever it stands to `buried`, with the reason `unreadable`.
local function set_aside(id)
  if aside[id] then return end
  aside[id], aside[#aside + 1], bury_them = true, id, bury_aside
  count('unreadable')
end

-- A lease is over. how: release (attempt given back) | fail, expired (attempt kept, backoff) | loss
-- (given back, counted as a loss). delay_ms: nil for the backoff. The caller has checked that `r`
-- is the record of a leased task.
local function end_lease(id, t, r, how, delay_ms, reason)
  unlease(id, r)
  if t.lane then laned().leave(id, t, 'leased') end
  count(how)
  tally(id, how)
  if how == 'release' then tally(id, 'delay', math.floor((delay_ms or 0) / 1000)) end
  if S.locks == 1 then return unlock(id) end
  reason = reason and string.sub(reason, 1, 240)
  if how ~= 'release' then remember(r, how, r.attempts, reason or '') end
  if how == 'release' or how == 'loss' then r.attempts = r.attempts - 1 end
  if how == 'loss' then r.losses = math.min(r.losses + 1, 65535) end
  if how ~= 'release' and reason == nil then reason = how end
  if reason then r.reason = reason end
  local most = t.attempts_max > 0 and t.attempts_max or S.attempts
  local spent = most > 0
    and r.attempts >= most
    and (how == 'fail' or how == 'expired')
  if spent then return bury(id, r, r.reason) end
  if how == 'loss' and S.losses_max > 0 and r.losses >= S.losses_max then
    return bury(id, r, 'losses')
  end
  if delay_ms == nil then delay_ms = (how == 'fail' or how == 'expired') and backoff(t, r) or 0 end
  r.holder, r.sticky, r.lease_ms = '', false, 0
  if r.attempts == 0 and r.losses == 0 then
    tries_drop(id)
  else
    tries_put(id, r)
  end
  if delay_ms > 0 then
    make_delayed(id, t, now + delay_ms)
  else
    make_ready(id, t)
  end
end

-- End at most `most` leases of one holder (`~`: of all sessions); sticky ones stay. How many ended.
local function end_leases(holder, most, how, reason)
  local index, ended_here, from = key('leased:' .. holder), 0, 0
  while ended_here < most do
    local ids = redis.call('ZRANGE', index, from, from + math.min(100, most - ended_here) - 1)
    if #ids == 0 then break end
    for i = 1, #ids do
      local t, r, unreadable = both_get(ids[i])
      if t and r and index_of(r.holder) == holder and not r.sticky then
        end_lease(ids[i], t, r, how, nil, reason)
        ended_here = ended_here + 1
      else
        if unreadable and not (r and r.sticky) then set_aside(ids[i]) end
        from = from + 1
      end
    end
  end
  return ended_here
end

-- End what leases have run out, at most `most`: of each holder's its share, so that no crowd of one
-- keeps the others' waiting.
local function end_run_out(most)
  local ended_till, left, holders = text(lease_doubt() and known or now - S.lag), most, {}
  for holder in string.gmatch(S.holders, '%S+') do
    holders[#holders + 1] = holder
  end
  for h, holder in ipairs(holders) do
    local share = math.ceil(left / (#holders - h + 1))
    local ids =
      redis.call('ZRANGEBYSCORE', key('leased:' .. holder), '-inf', ended_till, 'LIMIT', 0, share)
    for i = 1, #ids do
      local t, r, unreadable = both_get(ids[i])
      if t and r then
        end_lease(ids[i], t, r, 'expired')
      elseif unreadable then
        set_aside(ids[i])
      else
        redis.call('ZREM', key('leased:' .. holder), ids[i])
        count('strays')
      end
    end
    left = left - #ids
  end
  return most - left
end

-- The next lease number: view · 2^36 + n on an embedded store, the clock's microseconds (never
-- back) elsewhere.
local function new_lease()
  if KEYS[2] and string.byte(KEYS[2], -1) ~= 126 then -- on a cluster it is the guard, `<prefix>~`
    if not view then
      view = tonumber(redis.call('GET', KEYS[2])) or 0
      set('n', S.n)
      -- More than 2^36 leases of one view go on into the next: above them, and what a crash may
      -- have lost.
      if view ~= S.view then
        set('n', math.max(0, S.n + 16777216 - (view - S.view) * 68719476736))
        set('view', view)
      end
    end
    S.n = S.n + 1
    return view * 68719476736 + S.n
  end
  set('n', math.max(now_us, S.n + 1))
  return S.n
end

-- A task that nobody took within its TTL is buried.
local function outlived(id, r)
  count('outlived')
  r = r or fresh_tries()
  remember(r, 'ttl', r.attempts, '')
  bury(id, r, 'expired')
end

-- Buried tasks from a rank on, at most `most` ids: buried by `till`, for a reason that begins with
-- `prefix`, or is it (`exact`). How many entries were looked at comes second; whether there are
-- more behind them, third.
local function buried_page(from, most, prefix, till, exact)
  local page, ids, seen = redis.call('ZRANGE', key('buried'), from, from + 999, 'WITHSCORES'), {}, 0
  for i = 1, #page, 2 do
    if tonumber(page[i + 1]) > till then return ids, seen, false end
    if #ids == most then return ids, seen, true end
    local r, unreadable
    if exact or prefix ~= '' then
      r, unreadable = tries_get(page[i])
    end
    local reason = r and r.reason or unreadable and 'unreadable' or ''
    if reason == prefix or not exact and string.sub(reason, 1, #prefix) == prefix then
      ids[#ids + 1] = page[i]
    end
    seen = seen + 1
  end
  return ids, seen, #page == 2000
end
