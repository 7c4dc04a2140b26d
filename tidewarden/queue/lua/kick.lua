-- kick: makes buried tasks ready again; their attempts, losses and TTL are forgotten.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 tasks at most
--         4 id ("": any)
--         5 prefix of the reason ("": any)
--         6 rank to go on from
--         7 only those buried by then (unix ms; 0 or none: by now)
--         8 less so many ms
--         9 1: the prefix is the whole reason
--         10… ids, and no others
-- RETURNS {moved, rank to go on from, of ids how many were looked at | -1: there are no more}
open()
local most, id, prefix, from = int(3, 'count', 0, 1000), ARGV[4], ARGV[5], int(6, 'rank', 0, NEVER)
local till = (ARGV[7] and int(7, 'till', 0, NEVER) or 0)
if till == 0 then till = now - (ARGV[8] and int(8, 'age', 0, NEVER) or 0) end
if #ARGV > 1009 then refuse('BADARG a kick names at most 1000 tasks') end
local moved, room = 0, 16777216 -- bytes of payloads, each of which is read
-- How many bytes the payload of a task that became ready has; nil: it is a stray, or nobody can
-- read it.
local function kick(name)
  local t, r, unreadable = both_get(name)
  -- It may be the record of tries alone, which is forgotten.
  if unreadable then t = task_get(name) end
  if not t then return nil end
  redis.call('ZREM', key('buried'), name)
  if r or unreadable then tries_drop(name) end
  if t.expires > 0 then
    t.expires = 0
    task_put(name, t)
  end
  make_ready(name, t)
  count('kicked')
  tally(name, 'kick')
  return #t.payload
end
local named = id ~= '' and { id } or { unpack(ARGV, 10) }
local ids, seen, more = named, 0, false
if #named == 0 then
  ids, seen, more = buried_page(from, most, prefix, till, ARGV[9] == '1')
end
for i = 1, #ids do
  -- A stray, or one that nobody can read, is passed by: the next round begins behind it.
  local bytes = (#named == 0 or redis.call('ZSCORE', key('buried'), ids[i])) and kick(ids[i])
  if bytes then
    moved, room = moved + 1, room - bytes
  end
  if room <= 0 and i < #ids then
    local place = #named > 0 and i or redis.call('ZRANK', key('buried'), ids[i + 1])
    return finish({ moved, place })
  end
end
return finish({ moved, more and from + seen - moved or -1 })
