-- end: ends leases before their time: as releases, failures, losses, or by burying the tasks.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per task: id, lease, how (release | fail | loss | bury), delay ms ("-1": by the rules
--         of `how`), reason ("": none)
-- RETURNS per task: 1, or 0 when the lease is not current (a sticky lease stays through a loss)
open()
local HOWS = { release = true, fail = true, loss = true, bury = true }
-- A reason as long as is kept, without a part of a character (UTF-8) at its end.
local function shortened(reason)
  local at = 240
  while #reason > at and at > 236 and math.floor(string.byte(reason, at + 1) / 64) == 2 do
    at = at - 1
  end
  return string.sub(reason, 1, at)
end

local items = {}
for i = 3, #ARGV, 5 do
  if not ARGV[i + 4] then refuse('BADARG the end of a lease has five arguments') end
  if not HOWS[ARGV[i + 2]] then refuse('BADARG how a lease ends: ' .. tostring(ARGV[i + 2])) end
  items[#items + 1] = {
    ARGV[i],
    int(i + 1, 'lease', 0, 9007199254740991),
    ARGV[i + 2],
    int(i + 3, 'delay ms', -1, NEVER),
    shortened(ARGV[i + 4]),
  }
end
local reply = {}
for i = 1, #items do
  local id, lease, how, delay_ms, reason = unpack(items[i])
  local r = current_lease(id, lease)
  local t, unreadable
  if r then
    t, unreadable = task_get(id)
  end
  if not (t or unreadable) or (how == 'loss' and r.sticky) then
    reply[i] = 0
  elseif unreadable then
    set_aside(id)
    reply[i] = 1
  elseif how == 'bury' then
    index_remove(id, t, r, 'leased')
    remember(r, 'bury', r.attempts, reason)
    bury(id, r, reason)
    reply[i] = 1
  else
    end_lease(id, t, r, how, delay_ms >= 0 and delay_ms or nil, reason ~= '' and reason or nil)
    reply[i] = 1
  end
end
return finish(reply)
