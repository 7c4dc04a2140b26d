-- standing: what the nodes meet with at a provider, beside its gate in the first shard of its client's queue: a hash `account_standing`,
-- node -> since (ms) last (ms) next (ms, 0: as each account is due) told (1: that nobody answers it is an event) class message. A node
-- that met with nothing has no field.
-- KEYS    1 the shard  2 the view
-- ARGV    3 note: 4 node, 5 how long ago it began, ms, 6 until its next try, ms (0: not known), 7 class of the failure, 8 message,
--           9 whether nobody answers it any more, 0|1: the first time is an event, and so is its end
--           over: 4 node, which was answered    read
-- RETURNS {whether there is something to be told of now 0|1, [node, since ms, last ms, next ms, class, message] …}; a note of which nothing more is heard is forgotten
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local HEARD_MS = 180000 -- a node with a failing account tries again within a minute
local name, verb, event = key('account_standing'), ARGV[3], false
if verb == 'note' then
  local ago, wait = int(5, 'ms ago', 0, NEVER), int(6, 'ms until the next', 0, NEVER)
  local silent = int(9, 'silent', 0, 1)
  local began, heard, told = string.match(redis.call('HGET', name, ARGV[4]) or '', '^(%d+) (%d+) %d+ ([01])')
  if heard and tonumber(heard) > now - HEARD_MS then ago = math.max(ago, now - tonumber(began)) end -- of its last boot
  local class, message = string.sub(ARGV[7], 1, 40), string.sub(ARGV[8], 1, 300)
  if silent == 1 and told ~= '1' then
    event = post_event('provider.silent', '', ARGV[4] .. ' ' .. class .. ' ' .. message)
    if event then told = '1' end
  end
  local times = text(math.max(0, now - ago)) .. ' ' .. text(now) .. ' ' .. text(wait > 0 and now + wait or 0)
  redis.call('HSET', name, ARGV[4], times .. ' ' .. (told or '0') .. ' ' .. class .. ' ' .. message)
elseif verb == 'over' then
  local told = string.match(redis.call('HGET', name, ARGV[4]) or '', '^%d+ %d+ %d+ ([01])')
  redis.call('HDEL', name, ARGV[4])
  if told == '1' then event = post_event('provider.answers', '', ARGV[4]) end
elseif verb ~= 'read' then refuse('BADARG what is asked of a standing: ' .. tostring(verb)) end
local flat, reply = redis.call('HGETALL', name), {event and 1 or 0}
for i = 1, #flat, 2 do
  local since, last, following, told, class, message = string.match(flat[i + 1], '^(%d+) (%d+) (%d+) ([01]) (%S+) (.*)$')
  if verb ~= 'over' and last and tonumber(last) > now - HEARD_MS then
    reply[#reply + 1] = {flat[i], tonumber(since), tonumber(last), tonumber(following), class, message}
  elseif verb ~= 'read' and told ~= '1' then
    redis.call('HDEL', name, flat[i]) -- one node is answered: others whose trouble goes on say so anew, and since when
  end -- else the end of a silence is that node's to tell
end
return finish(reply)
