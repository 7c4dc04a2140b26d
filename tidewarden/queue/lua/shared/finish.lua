-- finish: how every script ends: it wakes nodes, writes the shard's record, and replies.
-- REPLY   finish(items) = {now_ms, next_ms | -1, woke 0|1, items}; refusals are errors `CODE
--         message`

-- A holder's node is told something of this shard. On a cluster (where the last key is the guard)
-- only the shard's own servers pass it on; one before 7.0 knows no such command.
local function notify(holder, message)
  local cluster, queue, shard = string.match(P, '^{([^:]+):(.*):(%d+)}$')
  message = queue .. ' ' .. shard .. ' ' .. message
  if
    string.byte(KEYS[#KEYS], -1) == 126
    and type(redis.pcall('SPUBLISH', P .. ':wake:' .. holder, message)) == 'number'
  then
    return
  end
  redis.call('PUBLISH', '{' .. cluster .. '}:wake:' .. holder, message)
end

local function notify_ends()
  for from = 1, #ended, 1000 do
    local ids = { unpack(ended, from, math.min(from + 999, #ended)) }
    local waits = redis.call('HMGET', key('waits'), unpack(ids))
    redis.call('HDEL', key('waits'), unpack(ids))
    for i = 1, #ids do
      for holder in string.gmatch(waits[i] or '', '%S+') do
        notify(holder, 'end:' .. ids[i])
      end
    end
  end
  set('awaited', redis.call('HLEN', key('waits')))
end

local function wake()
  local function notify_other(holder, message)
    if holder ~= CALLER and holder ~= '' then notify(holder, message) end
  end
  if woke and S.waiting ~= '' then
    if for_all then
      notify(CALLER, 'ready')
      woke = false
    end
    for holder in string.gmatch(S.waiting, '%S+') do
      notify_other(holder, 'ready')
    end
    set('waiting', '')
  end
  if alarm_lowered then
    local nearest = text(math.min(S.alarm, S.tick) - now)
    for holder in string.gmatch(S.waiting, '%S+') do
      if holder ~= S.sweeper then notify_other(holder, text(S.alarm - now)) end
    end
    notify_other(S.sweeper, nearest)
  end
  if #ended > 0 then notify_ends() end
  -- Nodes where puts wait for room: each tries, and registers again when there is none.
  if freed and S.roomless ~= '' then
    for holder in string.gmatch(S.roomless, '%S+') do
      notify(holder, 'room')
    end
    set('roomless', '')
  end
end

local function finish(items)
  for i = 1, sequence and #items or 0 do -- which answers besides 1 there were
    local answer = items[i]
    local kind = type(answer)
    local refused, other = kind == 'table' and answer.err, kind == 'number' and answer ~= 1
    local of_put = effect == 'grows'
    if refused or kind == 'string' or other and of_put then sequence[4] = true end
    if refused or other and not of_put then sequence[5] = true end
  end
  if effect == 'reads' then
    if next(changed) ~= nil or counted then discard() end
    keep_record()
    return { now, S.alarm < NEVER and S.alarm or -1, 0, items }
  end
  if lanes then lanes.settle() end
  if joined then return items end
  if #aside > 0 then
    bury_them()
    if lanes then lanes.settle() end
  end
  -- Nobody can take; the pause's end is an alarm, or a resume.
  if S.paused > now then woke = false end
  if (woke and S.waiting ~= '') or alarm_lowered or #ended > 0 or (freed and S.roomless ~= '') then
    wake()
  end
  if sequence then
    local node, stream, number, puts, ends = unpack(sequence, 1, 5)
    if S['by:' .. node] ~= stream then set('by:' .. node, stream) end
    set('at:' .. node, 4 * number + (puts and 1 or 0) + (ends and 2 or 0))
  end
  if next(changed) ~= nil or counted then
    set('seq', math.max(S.seq + 1, clock_us))
    if S.format < FORMAT then set('format', FORMAT) end
    local fields = {}
    for field in pairs(changed) do
      local value = S[field]
      fields[#fields + 1], fields[#fields + 2] = field, value
    end
    if effect == 'grows' then
      redis.call('HSET', key('shard'), unpack(fields))
    elseif type(redis.pcall('HSET', key('shard'), unpack(fields))) == 'table' then
      -- The store is full, and nothing was removed yet.
      redis.call('HDEL', key('shard'), '') -- a removal first: a full store lets the script go on
      redis.call('HSET', key('shard'), unpack(fields))
    end
    if changed.layout then redis.call('PERSIST', key('shard')) end -- A dropped queue's is to end.
    for name, n in pairs(counts) do
      redis.call('HINCRBY', key('counts'), name, n)
    end
  end
  keep_record()
  return { now, S.alarm < NEVER and S.alarm or -1, woke and 1 or 0, items }
end
