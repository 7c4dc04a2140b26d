-- session_release: ends what a session holds in this shard, as losses once its grace is over, or as
-- releases. Sticky leases end by their time.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 the session's uuid  4 tasks at most  5 loss | release (none: loss)
-- RETURNS {ended, more 0|1}
open()
local uuid, most, how = ARGV[3], int(4, 'tasks', 1, 1000), ARGV[5] or 'loss'
if how ~= 'loss' and how ~= 'release' then refuse('BADARG leases end as loss or release') end
if not string.match(uuid, '^%x+$') or #uuid ~= 32 then
  refuse('BADARG the session is no uuid: ' .. uuid)
end
local holder, ended, stay = '~' .. uuid, 0, 0
local entries =
  redis.call('ZRANGEBYLEX', key('held'), '[' .. uuid, '(' .. uuid .. '\255', 'LIMIT', 0, most)
for i = 1, #entries do
  local id = string.sub(entries[i], 33)
  local t, r, unreadable = both_get(id)
  if unreadable and not (r and (r.holder ~= holder or r.sticky)) then
    set_aside(id)
    ended = ended + 1
  elseif (t or unreadable) and r and r.holder == holder then
    if r.sticky then
      stay = stay + 1
    else
      end_lease(id, t, r, how, nil, how == 'loss' and 'its session ended' or nil)
      ended = ended + 1
    end
  else
    redis.call('ZREM', key('held'), entries[i])
    count('strays')
  end
end
return finish({ ended, #entries == most and stay < most and 1 or 0 })
