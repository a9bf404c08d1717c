# appendix B through drafter.py
import sys, math; sys.path.insert(0,'/work/wt/packs/tests/models')
import torch, drafter, noise
from drafter import *
M=(1<<64)-1
def mixi(x):
    x^=x>>30; x=x*0xBF58476D1CE4E5B9&M; x^=x>>27; x=x*0x94D049BB133111EB&M; return x^(x>>31)
def fill(t,shape,s,b):
    n=1
    for d in shape:n*=d
    return torch.tensor([((mixi((t<<32)+i+1)>>40)/2**24-.5)*2*s+b for i in range(n)],dtype=torch.float32).view(shape)
def build(v2,types,causal):
    c=DraftCfg(v2=v2,D=32,vocab=64,target_layers=4,I=48,NQ=4,NK=2,hd=8,types=types,window=6,causal=causal,block=4,taps=(0,1),mask_id=63,theta=1e4,group=8,rank=4,top=4,spans=((0,64),))
    d=Drafter(c); sd={}
    sd['fc.weight']=fill(3,(32,64),.2,0); sd['hidden_norm.weight']=fill(4,(32,),.1,1); sd['norm.weight']=fill(5,(32,),.1,1)
    for l in range(2):
        o=15*l; p=f'layers.{l}.'
        sd[p+'input_layernorm.weight']=fill(6+o,(32,),.1,1); sd[p+'post_attention_layernorm.weight']=fill(7+o,(32,),.1,1)
        for t,n,sh in ((8,'q',(32,32)),(9,'k',(16,32)),(10,'v',(16,32)),(11,'o',(32,32))): sd[p+f'self_attn.{n}_proj.weight']=fill(t+o,sh,.3,0)
        sd[p+'self_attn.q_norm.weight']=fill(12+o,(8,),.1,1); sd[p+'self_attn.k_norm.weight']=fill(13+o,(8,),.1,1)
        for t,n,sh in ((14,'gate',(48,32)),(15,'up',(48,32)),(16,'down',(32,48))): sd[p+f'mlp.{n}_proj.weight']=fill(t+o,sh,.3,0)
        if v2:
            for t,n in ((17,'attention_conv'),(19,'mlp_conv')):
                b=fill(t+o,(2,2,32),.3,0); b[:,0]+=1
                sd[p+n+'.base_kernel']=b; sd[p+n+'.kernel_projection.weight']=fill(t+1+o,(16,32),.05,0)
    if v2:
        s='candidate_selector.'
        sd[s+'hidden_projection.weight']=fill(36,(4,32),1.5,0); sd[s+'predecessor_codebook']=fill(37,(64,4),1,0); sd[s+'successor_codebook']=fill(38,(64,4),1,0)
    d.load_state_dict(sd); return d
E=fill(1,(64,32),1,0); head=fill(2,(64,32),.5,0); X=fill(1000,(1,10,64),1,0)
X=torch.cat([X,torch.zeros(1,1,64)],1)
ids=torch.zeros(1,11,dtype=torch.long); ids[0,10]=38
for name,v2,types,causal,want,arg in (('v1 full',False,('full_attention',)*2,None,[0.873190,-1.166590,-0.172263,-0.377260],[26,26,26]),
  ('v1 slide',False,('sliding_attention',)*2,None,[1.336273,-0.756649,-0.122583,-0.813580],[52,32,32]),
  ('v2',True,('sliding_attention',)*2,False,[0.366743,0.807836,-0.880140,-0.152345],[46,22,5])):
    d=build(v2,types,causal)
    with torch.no_grad():
        h=d(X,ids,torch.tensor([[10]]),E)[0]
        print(name,(h[0,0,:4]-torch.tensor(want)).abs().max().item(),d.scores(h,head)[0].argmax(-1).tolist()==arg)
        if v2:
            g=noise.gumbel(torch.full((1,3),1234),torch.tensor([[11,12,13]]),64)
            print(d.path(h,torch.tensor([38]),head).tolist(), d.path(h,torch.tensor([38]),head,g,1.0).tolist())
