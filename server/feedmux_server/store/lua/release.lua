-- ARGV: epoch, nonce, delivered ('' if nothing was delivered under the lease), follows_lost ('1' or '0')
-- Whoever ends before it knows what a lost holder has done counts as lost, too: its lease is over, and not released.
local stored = read('epoch', 'nonce')
if stored[1] ~= ARGV[1] or stored[2] ~= ARGV[2] then return {'NOT_OURS'} end
redis.call('HSET', key, 'nonce', ARGV[4] == '1' and 'lost' or '', 'owner', '', 'lease_until_ms', '0', 'fence_cause', 'LEASE',
  'used_ms', int(now_ms()))
if ARGV[3] ~= '' then redis.call('HSET', key, 'delivered', ARGV[3]) end
return {'OK'}
